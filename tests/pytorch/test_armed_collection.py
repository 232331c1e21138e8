"""What the sentinel finds has everything collected for ten steps, and nothing else is changed by it."""

from __future__ import annotations

import json
import logging
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from probe.core.analysis.diagnosis.analyse import analyse
from probe.core.analysis.diagnosis.export import as_json
from probe.core.control.planner import COMPILED
from tests import user_scripts
from tests.pytorch.run_scripts import OWN
from tests.quick_python import probe_command, quick_python
from tests.required import require

torch = require("torch")

from probe.pytorch import TrainerMon  # noqa: E402

SETTINGS: dict[str, Any] = {
    "format": "api",
    "alert": {"rules": []},
    "sentinel": {"enable": True},
    "step_interval": 1000,
    "wg_distribution": True,
}
STEPS = 60
DEEP = {"actv", "actv_grad", "grad_unreduced", "grad_reduced", "param_origin", "param_updated"}


@pytest.fixture(autouse=True)
def _nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests of this process may have compiled something, after which no hook is placed."""
    import torch._dynamo.convert_frame as compiler

    monkeypatch.setattr(compiler, "FRAME_COUNTER", 0)


class Block(torch.nn.Module):
    """Two layers, with a division behind the second that goes wrong if asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.n0, self.n1 = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.bad = False

    def forward(self, x: Any) -> Any:
        y = self.n1(torch.tanh(self.n0(x)))
        return y * 0 / 0 if self.bad else y


class Net(torch.nn.Module):
    """Two blocks, in a checkpoint if asked to, and a head."""

    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.blocks, self.head, self._cut = torch.nn.ModuleList([Block(), Block()]), torch.nn.Linear(8, 1), cut

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=True) if self._cut else block(x)
        return self.head(x)


class Trained:
    """A training, watched or not: its weights, steps with rows, hooks in the last step, and what was logged."""

    def __init__(
        self,
        bad: Mapping[int, float | None] = {},
        settings: Mapping[str, Any] | None = SETTINGS,
        scaled: bool = False,
        cut: bool = False,
        act: Callable[[int, Any], object] = lambda step, monitor: None,
    ) -> None:
        """Train.

        Args:
            bad: factor of the loss by step; None for a division that goes wrong in the first block.
            settings: of the monitor; None for a training without one.
        """
        torch.manual_seed(0)
        self.model = Net(cut)
        self.steps: dict[int, set[str]] = {}
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scaled)
        self.monitor = monitor = None if settings is None else TrainerMon(settings)
        if monitor is not None:
            monitor.set_monitor(self.model, 1, self.optimizer)
            monitor.on_snapshot(lambda taken: self.steps.update({taken.step: {one.signal for one in taken.batches}}))
        for step in range(STEPS):
            act(step, monitor)
            self._step(step, bad.get(step, 1.0))
        self.hooks = sum(len(module._forward_hooks) for module in self.model.modules())
        self.directory = "" if monitor is None else monitor.output_directory or ""
        if monitor is not None:
            monitor.stop()
            assert monitor.faults == {}

    def _step(self, step: int, factor: float | None) -> None:
        generator = torch.Generator().manual_seed(step)
        self.model.blocks[0].bad = factor is None
        x = torch.randn(16, 8, generator=generator).requires_grad_()
        self.optimizer.zero_grad()
        loss = self.model(x).pow(2).mean() * (1.0 if factor is None else factor)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    @property
    def deep(self) -> list[int]:
        """Steps of which activations were collected."""
        return [step for step, signals in self.steps.items() if "actv" in signals]

    def bits(self) -> list[bytes]:
        """The weights, to the bit."""
        return [parameter.detach().numpy().tobytes() for parameter in self.model.parameters()]


BAD = {30: None, 31: None}


def test_everything_is_collected_in_the_ten_steps_after_a_loss_that_is_not_finite() -> None:
    """From the next step on; afterwards as configured, without a hook. Weights are those of a run without a monitor."""
    trained = Trained(BAD, scaled=True)
    assert trained.deep == [*range(31, 41)]
    assert all(trained.steps[step] == DEEP for step in trained.deep)
    assert set(trained.steps) == {0, *range(31, 41)}
    assert trained.hooks == 0
    assert trained.bits() == Trained(BAD, None, scaled=True).bits()


def test_a_leap_is_followed_by_ten_steps_as_well() -> None:
    """From the boundary on at which its judgement is known."""

    def wait(_: int, monitor: Any) -> None:
        monitor.flush()

    trained = Trained({30: 1e3}, act=wait)
    assert len(trained.deep) == 10
    assert trained.deep == [*range(trained.deep[0], trained.deep[0] + 10)]
    assert 31 <= trained.deep[0] <= 33


def test_a_second_time_nothing_more_is_collected() -> None:
    """After the same kind of finding."""
    assert Trained({20: None, 45: None}, scaled=True).deep == [*range(21, 31)]


@pytest.mark.parametrize("sentinel", [{"enable": True, "collect": False}, {"enable": False}])
def test_nothing_more_is_collected_if_it_is_switched_off(sentinel: Mapping[str, bool]) -> None:
    """By its own key, or with the sentinel."""
    assert Trained(BAD, SETTINGS | {"sentinel": sentinel}, scaled=True).deep == []


def test_a_budget_and_an_interval_hold_again_afterwards() -> None:
    """Samples lie where they would lie anyway, and are not counted as those of the configuration."""
    settings = SETTINGS | {"step_interval": 7, "collect_times": 5}
    trained = Trained({16: None}, settings, scaled=True)
    assert sorted(trained.steps) == sorted({0, 7, 14, *range(17, 27), 28, 35})


def test_a_changed_configuration_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once: what the user has changed while everything was collected holds from the next step on."""
    monkeypatch.setenv("DYNAMIC_MONITOR", "True")
    path = tmp_path / "monitor.json"
    path.write_text(json.dumps(SETTINGS | {"dynamic_on": True}))

    def change(step: int, _: Any) -> None:
        if step == 34:
            path.write_text(json.dumps(SETTINGS | {"dynamic_on": True, "step_interval": 5, "param_distribution": True}))

    trained = Trained(BAD, scaled=True, settings=path, act=change)  # type: ignore[arg-type]
    assert trained.deep == [31, 32, 33, 34]
    assert {step for step in trained.steps if step > 34} == {*range(35, STEPS, 5)}
    assert trained.steps[35] == {"grad_unreduced", "grad_reduced", "param_origin", "param_updated"}


def test_an_assigned_value_wins() -> None:
    """As a changed file does."""

    def assign(step: int, monitor: Any) -> None:
        if step == 34:
            monitor.ops = ["norm", "mean"]

    assert Trained(BAD, scaled=True, act=assign).deep == [31, 32, 33]


def test_nothing_is_collected_where_something_was_compiled(caplog: pytest.LogCaptureFixture) -> None:
    """One line says why; nothing is compiled again."""
    caplog.set_level(logging.WARNING, "probe")
    compiled = list[int]()

    def backend(graph: Any, _: Any) -> Any:
        compiled.append(1)
        return graph.forward

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    monitor, steps = TrainerMon(SETTINGS), list[int]()
    monitor.set_monitor(model, 1, optimizer)
    monitor.on_snapshot(lambda taken: steps.append(taken.step))
    model = torch.compile(model, backend=backend)
    for step in range(30):
        optimizer.zero_grad()
        (model(torch.ones(4, 8)).pow(2).mean() * (float("nan") if step == 12 else 1.0)).backward()
        optimizer.step()
        if step == 10:
            before = len(compiled)
    monitor.stop()
    torch._dynamo.reset()
    assert (steps, len(compiled)) == ([0], before)
    assert [text for text in caplog.messages if "nothing more is collected" in text] == [
        f"sentinel: after loss-not-finite, gradient-not-finite nothing more is collected: {COMPILED}"
    ]


def judged(directory: str) -> dict[str, Any]:
    """What the diagnosis says about a run."""
    return as_json(analyse(Path(directory)))


FILES = SETTINGS | {"format": "csv", "alert": {}, "ops": ["norm", "nans"]}


def test_rows_of_steps_with_finite_weights_name_the_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the graph of the step itself shows but a checkpoint: a scaler skips the update, and the next step is as
    bad."""
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path))
    trained = Trained(BAD, FILES, scaled=True, cut=True)
    report = trained.monitor._attachment.reporting.account.summary(STEPS, "", {}, True)
    (deep,) = report.deep
    assert (deep.first, deep.last, deep.step, deep.module, deep.spoilt) == (31, 40, 31, "blocks.0", None)
    findings = [entry for entry in judged(trained.directory)["findings"] if entry["grade"] == "critical"]
    assert [(entry["kind"], entry["step"], entry["where"]) for entry in findings] == [
        ("loss-not-finite", 30, "head"),
        ("loss-not-finite", 30, "blocks.0, head"),
    ]
    assert findings[1]["text"] == "at step 31, with finite weights, it shows first in blocks.0.output"


def test_rows_of_spoilt_weights_name_no_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The update of the step has applied NaN: a sentence says so, and places are those of the graph."""
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path))
    trained = Trained(BAD, FILES)
    result = judged(trained.directory)
    assert {entry["where"] for entry in result["findings"] if entry["grade"] == "critical"} == {
        "blocks.0.n1, blocks.1.n0"
    }
    assert result["diagnosis"]["spoilt"] == 30
    assert "the update of step 30 had applied gradients that are not finite" in result["diagnosis"]["text"]
    assert "blocks." not in result["diagnosis"]["text"]


PROGRAM = """
import torch
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), 0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled={scaled})
for step in range(60):
    x = torch.randn(16, 8)
    optimizer.zero_grad()
    if step in (30, 31):
        x[0, 0] = float("nan")
    loss = torch.utils.checkpoint.checkpoint(net, x.requires_grad_(), use_reentrant=True).pow(2).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
print(sum(float(p.detach().double().sum()) for p in net.parameters()))
"""
"""The program of a user, in which the graph shows but a checkpoint."""
SENTENCES = {
    True: "at step 31, with finite weights, it shows first in input",
    False: "critical: loss-not-finite in input, step 30 the loss is nan: NaN is in the input of `checkpoint_function`",
}
"""Part of the verdict, with a scaler that skips the update and without one, where later steps name no module."""


@pytest.mark.parametrize("scaled", SENTENCES)
def test_probe_run_names_the_steps_and_the_module(tmp_path: Path, scaled: bool) -> None:
    """In its last lines, or that the input was bad already. The program prints what it prints alone."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM.format(scaled=scaled))
    config = {"wg_distribution": True, "step_interval": 1000, "sentinel": {"enable": True}}
    (folder / "monitor.json").write_text(json.dumps(config))
    environment = {**os.environ, **OWN, "MONITOR_OUTPUT_DIR": str(folder / "out")}
    alone, watched = (
        subprocess.run(
            [*words, quick_python(*user_scripts.TORCH), "train.py"],
            cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False,
        )
        for words in ([], probe_command("run", "-c", "monitor.json", "--", modules=user_scripts.TORCH))
    )  # fmt: skip
    assert (watched.returncode, watched.stdout) == (0, alone.stdout), watched.stderr
    said = " ".join(line.removeprefix("probe:").strip() for line in watched.stderr.splitlines())
    assert "collected deep at steps 31 to 40 (loss-not-finite" in said
    assert SENTENCES[scaled] in said
