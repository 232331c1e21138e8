"""Promises to users: training is as without the monitor, nothing stays behind, and nothing of ours raises."""

from __future__ import annotations

import gc
import json
import logging
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe.core.output.sinks import SINKS
from probe.core.rules import RULES
from tests.pytorch.toys import SmallGPT, TinyNet, X, language_loss, token_batch
from tests.pytorch.watching import EVERYTHING, Row, numbers, read, rows_of, watch, weights_only
from tests.required import require

torch = require("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from probe.pytorch import TrainerMon  # noqa: E402

ALL = {**EVERYTHING, "monitor_mbs_grad": True, "format": ["csv", "tensorboard"], "ops": ["min", "mean", "zeros", "std"]}


def sgd(model: Any, **more: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **more)


def step(model: Any, optimizer: Any, micro_batches: int = 1, first: int = 0) -> None:
    """One training step of TinyNet."""
    for micro_step in range(micro_batches):
        model(X * (first + micro_step + 1)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


# Training is not disturbed.


def generators() -> list[bytes]:
    """The state of every random generator."""
    return [
        torch.get_rng_state().numpy().tobytes(),
        repr([part.tobytes() if isinstance(part, np.ndarray) else part for part in np.random.get_state()]).encode(),
        repr(random.getstate()).encode(),
    ]


def trained(monitored: bool, checkpoint: str | None, scales: bool) -> tuple[list[float], list[Any], list[bytes]]:
    """Losses, weights and generators of a short training with dropout and accumulation."""
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(7)
    model = SmallGPT(dropout=0.2, checkpoint=checkpoint)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=scales)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scales)
    monitor = TrainerMon(ALL)
    if monitored:
        monitor.set_monitor(model, 2, optimizer)
    losses = []
    for number in range(4):
        for micro_step in range(2):
            loss = language_loss(model, token_batch(2 * number + micro_step))
            losses.append(loss.item())
            scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e3)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    monitor.stop()
    assert monitor.faults == {}
    return losses, [parameter.detach().clone() for parameter in model.parameters()], generators()


@pytest.mark.parametrize("scales", [False, True])
@pytest.mark.parametrize("checkpoint", [None, "reentrant", "non-reentrant"])
def test_training_is_bit_identical(checkpoint: str | None, scales: bool) -> None:
    """Losses, weights and random generators are the same to the last bit with everything monitored and without."""
    losses, weights, states = trained(True, checkpoint, scales)
    other_losses, other_weights, other_states = trained(False, checkpoint, scales)
    assert losses == other_losses
    assert all(torch.equal(a, b) for a, b in zip(weights, other_weights, strict=True))
    assert states == other_states


class Operations(TorchDispatchMode):
    """Notes every operation on tensors, those of the monitor included."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def tensor_work(settings: dict[str, Any] | None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Operations of two steps of a fused and scaled training."""
    from probe.pytorch import modes

    monkeypatch.setattr(modes, "_disable_current_modes", Hidden)
    model = TinyNet()
    optimizer = sgd(model, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    monitor = watch(model, optimizer, **settings) if settings else None
    with Operations() as operations:
        for number in range(2):
            scaler.scale(model(X * (number + 1)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    if monitor:
        monitor.stop()
    return operations.seen


class Hidden:
    """Stands in for what keeps our operations out of users' modes, so that the test's mode sees them."""

    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


def test_an_unsampled_step_does_no_tensor_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that is not sampled runs the same operations as without a monitor; one that is runs more."""
    plain = tensor_work(None, monkeypatch)
    assert tensor_work({"start_step": 1000, "monitor_mbs_grad": True}, monkeypatch) == plain
    assert tensor_work({"start_step": 1, "monitor_mbs_grad": True}, monkeypatch) != plain


def test_memory_stays_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """From the hundredth step to the three hundredth neither objects nor hooks nor kept findings grow."""
    caplog.set_level(logging.CRITICAL, "probe")  # what is logged, pytest keeps
    model = TinyNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    settings = {"step_count_per_record": 1000, "alert": {"rules": [{"rule_name": "AnomalyNan"}]}, "queue_size": 1}
    monitor = watch(model, optimizer, **settings)
    counts = []
    for number in range(300):
        step(model, optimizer, first=0 if number % 2 else float("nan"))  # type: ignore[arg-type]
        if number in (99, 299):
            monitor.flush()
            gc.collect()
            counts.append((len(gc.get_objects()), sum(map(len, hooks_of(model, optimizer).values()))))
    assert monitor.flush()
    assert len(monitor.findings) == 1000
    monitor.stop()
    assert counts[1][1] == counts[0][1]
    assert counts[1][0] - counts[0][0] < 100


# Nothing stays behind.


def hooks_of(model: Any, optimizer: Any) -> dict[str, dict[Any, Any]]:
    """Every dict of hooks of the modules, the parameters and the optimizer, by where it is."""
    owners = [*model.named_modules(), *model.named_parameters(), ("optimizer", optimizer)]
    found = {f"{name}.{key}": value for name, owner in owners for key, value in vars(owner).items() if "hooks" in key}
    for name, parameter in model.named_parameters():
        found[f"{name}._backward_hooks"] = parameter._backward_hooks or {}
        found[f"{name}._post_accumulate_grad_hooks"] = parameter._post_accumulate_grad_hooks or {}
    return {name: dict(value) for name, value in found.items() if isinstance(value, dict)}


def picture(model: Any, optimizer: Any) -> dict[str, Any]:
    """All that a monitor might change."""
    return {
        "hooks": hooks_of(model, optimizer),
        "dicts of parameters": [(p._backward_hooks, p._post_accumulate_grad_hooks) for p in model.parameters()],
        "attributes": [sorted(vars(each)) for each in (*model.modules(), *model.parameters(), optimizer)],
        "step": (getattr(optimizer.step, "__func__", None), type(optimizer).step),
        "scaler": dict(vars(torch.amp.GradScaler)),
        "handler": signal.getsignal(signal.SIGTERM),
        "threads": set(threading.enumerate()),
        "files": sorted(path.name for path in Path("/proc/self/fd").iterdir()),
    }


@pytest.fixture(autouse=True)
def nothing_stays_patched() -> Any:
    gc.collect()  # a monitor that an earlier test dropped, not yet collected, takes back what it patched
    gc.freeze()  # what is left is not looked through again
    before = (dict(vars(torch.amp.GradScaler)), signal.getsignal(signal.SIGTERM), set(threading.enumerate()))
    yield
    assert (dict(vars(torch.amp.GradScaler)), signal.getsignal(signal.SIGTERM), set(threading.enumerate())) == before


class Duck:
    """An optimizer that offers no hooks."""

    def __init__(self, parameters: Any) -> None:
        self.param_groups = [{"params": list(parameters)}]

    def step(self) -> None: ...

    def zero_grad(self) -> None: ...


@pytest.mark.parametrize("make", [sgd, lambda model: Duck(model.parameters())])
def test_stop_leaves_everything_as_found(make: Callable[[Any], Any]) -> None:
    """After stop(), models, parameters, optimizers, classes, handlers, threads and files are as before."""
    model = SmallGPT(tied=True)
    optimizer = make(model)
    model.norm.register_forward_hook(lambda *_: None)
    language_loss(model, token_batch()).backward()  # torch makes some dicts when it needs them
    before = picture(model, optimizer)
    monitor = watch(model, optimizer, **ALL)
    assert picture(model, optimizer) != before
    for _ in range(2):
        language_loss(model, token_batch()).backward()
        optimizer.step()
    monitor.stop()
    assert picture(model, optimizer) == before
    monitor.stop()
    assert picture(model, optimizer) == before


def test_after_collect_times_everything_goes_by_itself() -> None:
    """When nothing more will be collected, hooks, thread and handlers are gone by the next forward, files complete."""
    model = TinyNet()
    optimizer = sgd(model)
    before = picture(model, optimizer)
    monitor = watch(model, optimizer, collect_times=2, start_step=1, step_interval=2)
    for _ in range(4):
        assert monitor.monitoring
        step(model, optimizer)
    assert not monitor.monitoring
    model(X)
    assert picture(model, optimizer) == before
    assert {row.step for row in read(monitor.output_directory)} == {1, 3}
    step(model, optimizer)
    monitor.stop()
    assert monitor.faults == {}


def test_collect_times_of_zero_collects_nothing() -> None:
    """With collect_times 0 there is not a single row, and no cost."""
    model = TinyNet()
    optimizer = sgd(model)
    monitor = watch(model, optimizer, collect_times=0)
    assert not monitor.monitoring
    step(model, optimizer)
    step(model, optimizer)
    assert rows_of(monitor) == {}
    assert monitor.cost.get("hooks", 0) == 0


BAD: list[tuple[str, dict[str, Any], type[Exception]]] = [
    ("a target that is not there", {"targets": {"nowhere": {}}}, ValueError),
    ("a sink that cannot be made", {"format": ["csv"], "ops": ["max"]}, OSError),
    ("a sink that cannot be opened", {"format": ["csv"], "ops": ["min"]}, OSError),
    ("a rule that cannot be made", {"alert": {"rules": [{"rule_name": "AnomalyNan"}]}}, OSError),
]


class Broken:
    """Sink or rule that raises at the chosen place."""

    def __init__(self, *where: str) -> None:
        self.where = where

    def _do(self, what: str) -> None:
        if what in self.where:
            raise OSError(f"cannot {what}")

    def open(self) -> None:
        self._do("open")

    def write(self, _: Any) -> None:
        self._do("write")

    def close(self) -> None:
        self._do("close")

    def judge(self, _: Any) -> list[Any]:
        self._do("judge")
        return []


def raising(*_: Any) -> Any:
    raise OSError("cannot be made")


@pytest.mark.parametrize(("what", "settings", "error"), BAD, ids=[name for name, _, _ in BAD])
def test_an_attachment_that_fails_leaves_nothing(
    what: str, settings: dict[str, Any], error: type[Exception], output_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When set_monitor raises, hooks, threads, files and the directory are gone, and it can be called again."""
    model = TinyNet()
    optimizer = sgd(model)
    before = picture(model, optimizer)
    monitor = TrainerMon({**EVERYTHING, **settings})
    with monkeypatch.context() as patched:
        if what == "a sink that cannot be made":
            patched.setitem(SINKS, "csv", raising)
        if what == "a sink that cannot be opened":
            patched.setitem(SINKS, "csv", lambda _: Broken("open"))
        if what == "a rule that cannot be made":
            patched.setitem(RULES, "AnomalyNan", raising)
        with pytest.raises(error):
            monitor.set_monitor(model, 1, optimizer)
    assert picture(model, optimizer) == before
    assert not output_dir.exists() or not list(output_dir.iterdir())
    assert monitor.output_directory is None
    assert not monitor.monitoring
    if error is OSError:
        monitor.set_monitor(model, 1, optimizer)
        step(model, optimizer)
        assert rows_of(monitor)


def test_two_monitors_do_not_hear_each_other() -> None:
    """Two monitors on two models with optimizers of one class each see their own; one stops without the other."""
    models = [TinyNet(), TinyNet()]
    optimizers = [sgd(model) for model in models]
    before = [picture(model, optimizer) for model, optimizer in zip(models, optimizers, strict=True)]
    first, second = (watch(model, optimizer) for model, optimizer in zip(models, optimizers, strict=True))
    for number in range(3):
        step(models[0], optimizers[0], first=number)
    step(models[1], optimizers[1], first=10)
    assert (first.step, second.step) == (3, 1)
    rows = rows_of(first)
    step(models[1], optimizers[1], first=11)
    others = rows_of(second)
    assert {row.step for row in rows} == {0, 1, 2}
    assert {row.step for row in others} == {0, 1}
    assert others[Row("actv", 1, "fc.input")]["max"] == 12.0
    after = [picture(model, optimizer) for model, optimizer in zip(models, optimizers, strict=True)]
    for found, left in zip(before, after, strict=True):
        assert {key: value for key, value in left.items() if key != "files"} == {
            key: value for key, value in found.items() if key != "files"
        }


def test_a_scaler_wrapped_meanwhile_by_somebody_else() -> None:
    """When another tool wraps GradScaler.step while we listen, its wrapper stays and ours can come and go."""
    original = torch.amp.GradScaler.step
    try:
        for _ in range(3):
            model = TinyNet()
            optimizer = sgd(model)
            monitor = watch(model, optimizer)
            ours = torch.amp.GradScaler.step
            torch.amp.GradScaler.step = lambda *args, ours=ours: ours(*args)
            scaler = torch.amp.GradScaler("cpu")
            scaler.scale(model(X).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            assert {row.step for row in rows_of(monitor)} == {0}
    finally:
        torch.amp.GradScaler.step = original


# No exception of ours reaches training.


class Awkward(torch.nn.Parameter):
    """A parameter that a tool cannot read."""

    @property
    def main_grad(self) -> Any:
        raise RuntimeError("no main_grad for you")


class Unreadable(torch.Tensor):
    """A tensor that cannot be read."""

    @property
    def shape(self) -> Any:
        raise RuntimeError("no shape for you")


class Output(dict):  # type: ignore[type-arg]
    """A container that cannot be looked into."""

    def values(self) -> Any:
        raise RuntimeError("no values for you")


class Opaque(torch.nn.Module):
    """A module whose outputs cannot be looked into, with a parameter whose gradients cannot be read."""

    def __init__(self, wrap: Callable[[Any], Any] = lambda x: Output(y=x * 1)) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(2, 1, bias=False)
        self.fc.weight = Awkward(torch.tensor([[1.0, 2.0]]))
        self.inner = Inner(wrap)

    def forward(self, x: Any) -> Any:
        return self.inner(self.fc(x))["y"]


class Inner(torch.nn.Module):
    """Gives its input in some container."""

    def __init__(self, wrap: Callable[[Any], Any]) -> None:
        super().__init__()
        self.wrap = wrap

    def forward(self, x: Any) -> Any:
        return self.wrap(x)


def test_every_source_may_fail() -> None:
    """Parameters, state, gradients and activations that raise when read leave training as it is, and are counted."""
    model, twin = Opaque(), Opaque()
    optimizer, other = sgd(model), sgd(twin)
    monitor = TrainerMon({**EVERYTHING, "format": ["csv"]}, params_have_main_grad=True)
    monitor.set_monitor(model, 1, optimizer)
    for number in range(3):
        for net, each in ((model, optimizer), (twin, other)):
            net(X * (number + 1)).sum().backward()
            if each is optimizer and number:
                each.state[net.fc.weight]["odd"] = torch.zeros(2).as_subclass(Unreadable)
            each.step()
            each.zero_grad()
    assert torch.equal(model.fc.weight, twin.fc.weight)
    monitor.stop()
    assert monitor.faults == {
        "gradient: RuntimeError": 3,
        "before the update: RuntimeError": 3,
        "grad_reduced of fc.weight: RuntimeError": 3,
        "odd of fc.weight: RuntimeError": 2,
        f"activations: {__name__}.Output are left alone": 1,
    }
    manifest = json.loads((Path(monitor.output_directory) / "manifest.json").read_text())
    assert manifest["faults"] == monitor.faults
    rows = read(monitor.output_directory)
    assert {row.step for row in rows if row.signal == "param_updated"} == {0, 1, 2}
    assert {row.step for row in rows if row.signal == "actv" and row.name == "fc.output"} == {0, 1, 2}


@pytest.mark.parametrize("where", ["judge", "write", "close"])
def test_every_rule_and_sink_may_fail(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule or sink that raises is counted and tried again; the others get every step."""
    seen: list[int] = []

    class Counting(Broken):
        def write(self, snapshot: Any) -> None:
            seen.append(snapshot.step)

    monkeypatch.setitem(SINKS, "csv", lambda _: Broken(where))
    monkeypatch.setitem(SINKS, "anomaly", lambda _: Counting())
    monkeypatch.setitem(RULES, "AnomalyNan", lambda *_: Broken(where))
    model = TinyNet()
    optimizer = sgd(model)
    monitor = watch(model, optimizer, alert={"rules": [{"rule_name": "AnomalyNan"}]}, **weights_only())
    for _ in range(3):
        step(model, optimizer)
    monitor.stop()
    assert seen == [0, 1, 2]
    place = {"judge": "rule Broken", "write": "sink Broken", "close": "sink Broken"}[where]
    (kind,) = monitor.faults
    assert kind == f"{place}: OSError"
    assert monitor.faults[kind] == {"judge": 14, "write": 3, "close": 1}[where]
    manifest = json.loads((Path(monitor.output_directory) / "manifest.json").read_text())
    assert manifest["faults"] == monitor.faults


def test_a_sink_that_ends_its_thread_does_not_hang_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sink that raises SystemExit on the delivery thread is counted like any other failure."""

    class Leaving(Broken):
        def write(self, _: Any) -> None:
            raise SystemExit

    monkeypatch.setitem(SINKS, "csv", lambda _: Leaving())
    model = TinyNet()
    optimizer = sgd(model)
    monitor = watch(model, optimizer, queue_size=1)
    for _ in range(4):
        step(model, optimizer)
    monitor.stop()
    assert monitor.faults == {"delivery: SystemExit": 4}


def test_a_directory_that_vanishes_is_made_again(caplog: pytest.LogCaptureFixture) -> None:
    """When the output directory is removed in the middle of a run, training goes on and later steps are written."""
    model = TinyNet()
    optimizer = sgd(model)
    monitor = watch(model, optimizer)
    step(model, optimizer)
    assert monitor.flush()
    shutil.rmtree(str(monitor.output_directory))
    for _ in range(2):
        step(model, optimizer)
    assert {row.step for row in rows_of(monitor)} == {1, 2}
    assert caplog.text.count("the folder was removed while the run writes to it, with its steps") == 1


def test_a_directory_that_becomes_a_file_is_a_fault() -> None:
    """When a file takes the directory's place, training goes on and every lost step is counted."""
    model, twin = TinyNet(), TinyNet()
    optimizer, other = sgd(model), sgd(twin)
    monitor = watch(model, optimizer)
    directory = Path(str(monitor.output_directory))
    for number in range(3):
        step(model, optimizer, first=number)
        step(twin, other, first=number)
        if number == 0:
            assert monitor.flush()
            shutil.rmtree(directory)
            directory.write_text("not a directory")
    monitor.stop()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))
    assert monitor.faults["sink CsvSink: NotADirectoryError"] == 2
    assert directory.read_text() == "not a directory"


# What a program may ask.


def test_an_interrupted_step_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sinks receive the outcome of each step: applied, skipped or interrupted."""
    outcomes: list[tuple[int, str]] = []

    class Listening(Broken):
        def write(self, snapshot: Any) -> None:
            outcomes.append((snapshot.step, snapshot.outcome))

    monkeypatch.setitem(SINKS, "csv", lambda _: Listening())
    model = TinyNet()
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu")
    with suppress(FloatingPointError), watch(model, optimizer):
        for factor in (1.0, float("inf"), 1.0):
            scaler.scale(model(X * factor).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        model(X)
        raise FloatingPointError
    assert outcomes == [(0, "applied"), (1, "skipped"), (2, "applied"), (3, "partial")]


def test_monitoring_and_step() -> None:
    """``monitoring`` is true while anything will still be collected, ``step`` is the training step in progress."""
    model = TinyNet()
    optimizer = sgd(model)
    monitor = TrainerMon(EVERYTHING)
    assert (monitor.monitoring, monitor.step) == (False, 0)
    monitor.set_monitor(model, 1, optimizer, start_iteration=10)
    assert (monitor.monitoring, monitor.step) == (True, 10)
    step(model, optimizer)
    assert (monitor.monitoring, monitor.step) == (True, 11)
    monitor.stop()
    assert (monitor.monitoring, monitor.step) == (False, 11)


@pytest.mark.parametrize("order", ["documented", "existing", "several", "keywords"])
def test_both_orders_of_set_monitor(order: str) -> None:
    """The documented order and that of the existing tool mean the same; several optimizers may stand in both."""
    model = TinyNet()
    optimizer = sgd(model)
    monitor = TrainerMon({**EVERYTHING, "monitor_mbs_grad": True})
    if order == "documented":
        monitor.set_monitor(model, 2, optimizer, None, None, 5)
    elif order == "existing":
        monitor.set_monitor(model, optimizer, 2, None, None, 5)
    elif order == "several":
        monitor.set_monitor([model], [optimizer], 2, start_iteration=5)
    else:
        monitor.set_monitor(optimizer=optimizer, model=model, start_iteration=5)
    step(model, optimizer, 2)
    assert {(row.step, row.micro_step) for row in rows_of(monitor) if row.signal == "grad_unreduced"} == {
        (5, 0),
        (5, 1),
    }


@pytest.mark.parametrize("scales", [False, True])
def test_metrics_at_every_moment_of_a_step(scales: bool) -> None:
    """The generate functions return the values so far in this step, true under a scaler too; then the ended step."""
    model, twin = TinyNet(), TinyNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, enabled=scales)
    monitor = watch(model, optimizer, 2, format="api")
    tag, out = "0:fc.weight/rank0", "0:fc2.output"
    for _ in range(2):
        twin.zero_grad()
        for micro_step in range(2):
            loss = model(X * (micro_step + 1)).sum()
            actv, actv_grad = monitor.generate_xy_metrics()
            assert f"{out}:{micro_step}/rank0/actv" in actv
            assert f"{out}:{micro_step}/rank0/actv_grad" not in actv_grad
            scaler.scale(loss).backward()
            twin(X * (micro_step + 1)).sum().backward()
            norm = pytest.approx(numbers(twin.fc.weight.grad)["norm"], rel=1e-5)
            reduced, unreduced = monitor.generate_wgrad_metrics()
            assert reduced[f"{tag}/post_grad"]["norm"] == unreduced[f"{tag}/pre_grad"]["norm"] == norm
        assert monitor.generate_xy_metrics()[1][f"{out}:1/rank0/actv_grad"]["max"] == pytest.approx(1.0)
        scaler.unscale_(optimizer)
        assert monitor.generate_wgrad_metrics()[0][f"{tag}/post_grad"]["norm"] == norm
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        reduced, unreduced = monitor.generate_wgrad_metrics()
        assert reduced[f"{tag}/post_grad"]["norm"] == unreduced[f"{tag}/pre_grad"]["norm"] == norm
        assert f"{out}:1/rank0/actv" in monitor.generate_xy_metrics()[0]
    monitor.stop()
    assert monitor.generate_wgrad_metrics() == ({}, {})
    assert monitor.faults == {}


class Tedious(dict):  # type: ignore[type-arg]
    """A container, registered with torch, that takes a hundredth of a second to look into."""

    looks = 0

    def flattened(self) -> tuple[list[Any], None]:
        Tedious.looks += 1
        end = time.perf_counter() + 0.01
        while time.perf_counter() < end:
            pass
        return [*self.values()], None


torch.utils._pytree.register_pytree_node(
    Tedious, Tedious.flattened, lambda values, _: Tedious(y=values[0]), serialized_type_name="Tedious"
)


def test_the_cost_of_every_step_is_counted() -> None:
    """Time spent in hooks adds up over all steps of the run."""
    model = Opaque(lambda x: Tedious(y=x * 1))
    optimizer = sgd(model)
    monitor = watch(model, optimizer)
    for _ in range(3):
        step(model, optimizer)
    monitor.stop()
    assert Tedious.looks >= 3
    assert monitor.cost["hooks"] >= 0.01 * Tedious.looks
    assert monitor.cost["steps"] == 3
