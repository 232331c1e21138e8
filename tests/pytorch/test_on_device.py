"""Training on a CUDA device: nothing waits for it, and a graph is captured as without a monitor."""

from __future__ import annotations

import json
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.required import require

torch = require("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import probe  # noqa: E402
from probe.pytorch import TrainerMon, host_copies  # noqa: E402 - only where torch is

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
SENTINEL: dict[str, Any] = {"format": "csv", "sentinel": {"enable": True}, "step_interval": 1000}
EVERYTHING: dict[str, Any] = {
    "format": "csv",
    "sentinel": {"enable": True},
    "wg_distribution": True,
    "param_distribution": True,
    "mv_distribution": True,
    "xy_distribution": True,
    "all_xy": True,
}


@pytest.fixture(autouse=True)
def everything_is_on_the_device() -> Iterator[None]:
    with torch.device("cuda"):
        yield


def net(seed: int = 0, width: int = 64) -> Any:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.Tanh(), torch.nn.Linear(width, 4))


def step(model: Any, optimizer: Any, x: Any, limit: float = 0.0) -> None:
    optimizer.zero_grad()
    model(x).square().mean().backward()
    if limit:
        torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
    optimizer.step()


def busy() -> None:
    """Give the device work for about a second."""
    numbers = torch.randn(8192, 8192)
    for _ in range(40):
        numbers = numbers @ numbers.T * 1e-4


@pytest.mark.parametrize("kind", ["fused", "plain"])
@pytest.mark.parametrize("config", [SENTINEL, EVERYTHING], ids=["sentinel", "everything"])
def test_nothing_waits_for_the_device(config: dict[str, Any], kind: str, monkeypatch: Any) -> None:
    """With clips, in steps that are sampled and in others. Torch raises at its own waits, and copies are waited for on
    another thread."""
    waiting, original = set[int](), host_copies.wait_for

    def wait_for(event: Any) -> None:
        waiting.add(threading.get_ident())
        original(event)

    monkeypatch.setattr(host_copies, "wait_for", wait_for)
    model, x = net(), torch.randn(16, 8)
    if kind == "fused":
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    else:
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    monitor = TrainerMon(config)
    monitor.set_monitor(model, 1, optimizer)
    for _ in range(3):
        step(model, optimizer, x, 0.1)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(5):
            step(model, optimizer, x, 0.1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    seen = {*waiting}
    monitor.stop()
    assert monitor.faults == {}
    assert waiting
    assert threading.get_ident() not in seen


@pytest.mark.parametrize("config", [SENTINEL, EVERYTHING], ids=["sentinel", "everything"])
def test_a_graph_is_captured_while_numbers_are_on_their_way(config: dict[str, Any]) -> None:
    """The thread that waits for the device has no part in the capture; replays update as steps do."""
    models = [net(), net()]
    x, weights = torch.randn(16, 8), []
    for number, model in enumerate(models):
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3, capturable=True)
        monitor = TrainerMon(config) if number else None
        if monitor is not None:
            monitor.set_monitor(model, 1, optimizer)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                busy()
                step(model, optimizer, x, 0.1)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step(model, optimizer, x, 0.1)
        for _ in range(4):
            graph.replay()
        torch.cuda.synchronize()
        step(model, optimizer, x, 0.1)
        weights.append([parameter.detach().cpu() for parameter in model.parameters()])
        if monitor is not None:
            monitor.stop()
            assert {*monitor.faults} <= {"hooks called while a CUDA graph was captured"}
    assert all(map(torch.equal, *weights))


def found(folder: Path) -> list[tuple[str, int]]:
    """Checks that have warned, with their steps."""
    lines = [json.loads(line) for path in folder.glob("*/checks.jsonl") for line in path.read_text().splitlines()]
    return [(line["check"], line["since"]) for line in lines if line["grade"] != "note"]


@pytest.mark.parametrize("options", [{"fused": True}, {"capturable": True}, {}], ids=["fused", "capturable", "plain"])
def test_steps_that_only_the_device_knows(options: dict[str, bool], tmp_path: Path, monkeypatch: Any) -> None:
    """State that begins anew in the middle is found."""
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path))
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, **options)
    monitor = TrainerMon(SENTINEL)
    monitor.set_monitor(model, 1, optimizer)
    for number in range(60):
        if number == 40:
            optimizer.state.clear()
        step(model, optimizer, torch.randn(16, 8))
    monitor.stop()
    assert monitor.faults == {}
    assert found(tmp_path) == [("state-restarted", 40)]


def test_reading_is_no_part_of_transformations_and_modes(tmp_path: Path, monkeypatch: Any) -> None:
    """Gradients of one sample each by ``torch.func``, while those of the last update are still there."""
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path))
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    monitor = TrainerMon(SENTINEL)
    monitor.set_monitor(model, 1, optimizer)

    def loss(parameters: Any, x: Any) -> Any:
        return torch.func.functional_call(model, parameters, (x,)).pow(2).mean()

    for _ in range(4):
        parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
        rows = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, torch.randn(6, 8))
        for name, parameter in model.named_parameters():
            parameter.grad = rows[name].mean(0)
        optimizer.step()
    monitor.stop()
    assert monitor.faults == {}
    assert found(tmp_path) == []


def test_a_dispatch_mode_sees_no_operator_of_ours() -> None:
    """Each that it sees is called by the program."""
    ours: set[tuple[str, str]] = set()
    package = str(Path(probe.__file__).parent)

    class Callers(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            frames = [frame for frame in traceback.extract_stack() if "torch" not in Path(frame.filename).parts]
            place = frames[-2]  # the last is this one
            if place.filename.startswith(package) and "original(" not in str(place.line):  # a replaced function's own
                ours.add((str(function), f"{place.filename}:{place.lineno}"))
            return function(*args, **(kwargs or {}))

    model, x = net(), torch.randn(16, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with Callers():
        monitor = TrainerMon(EVERYTHING)
        monitor.set_monitor(model, 1, optimizer)
        for _ in range(3):
            step(model, optimizer, x, 0.1)
        monitor.stop()
    assert monitor.faults == {}
    assert ours == set()


def test_the_loss_is_the_value_that_the_backward_began_with() -> None:
    """Not one that the program makes of it later, in place and before the device has got there."""
    model, x = net(), torch.randn(16, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    numbers: list[dict[str, float]] = []
    monitor = TrainerMon(SENTINEL | {"format": "api"})
    monitor.set_monitor(model, 1, optimizer)
    monitor.on_run_step(lambda run_step: numbers.append({**run_step.values}))
    truth = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        truth.append(loss.detach().clone())
        loss.backward()
        with torch.no_grad():
            loss.mul_(1000.0)
        optimizer.step()
    monitor.stop()
    assert monitor.faults == {}
    assert [each["loss_root"] for each in numbers] == pytest.approx([float(value) for value in truth], rel=1e-6)
