"""Accelerate, really; Composer and torchtitan, which need another torch, by stand-ins that state their interface."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from probe.core.monitor.trainer_mon import Monitor, watcher_of
from tests.pytorch.test_trainer_callbacks import CONFIG, MICRO_BATCHES, STEPS, by_hand, numbers_of, rows_of
from tests.required import require

torch = require("torch")
accelerate = require("accelerate")

from probe.pytorch.callbacks.accelerate import ProbeTracker, watch  # noqa: E402


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """No state of another accelerator of this process."""
    yield
    accelerate.state.AcceleratorState._reset_state(True)


def net() -> Any:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))


def trained(accelerator: Any, attach: Any, log: str = "after") -> tuple[Any, Any]:
    """A loop with accumulation as Accelerate's documentation has it, which logs the number of each micro batch."""
    accelerator.init_trackers("run")
    plain = net()
    model, optimizer = accelerator.prepare(plain, torch.optim.AdamW(plain.parameters(), 0.1))
    monitor = attach(accelerator, model, optimizer)
    for number in range(STEPS * MICRO_BATCHES):
        with accelerator.accumulate(model):
            loss = model(torch.full((2, 3), number / 8)).square().mean()
            accelerator.backward(loss)
            if log == "before":
                accelerator.log({"micro": number, "text": "a"}, step=number + 1)
            optimizer.step()
            optimizer.zero_grad()
            if log == "after":
                accelerator.log({"micro": number, "loss": loss.item(), "step": 3}, step=number + 1)
        if number == STEPS * MICRO_BATCHES - 1:
            model.eval()
            with torch.no_grad():
                accelerator.log({"val_loss": float(model(torch.ones(2, 3)).mean())})
    return plain, monitor


def accelerator(**options: Any) -> Any:
    return accelerate.Accelerator(cpu=True, gradient_accumulation_steps=MICRO_BATCHES, **options)


def test_accelerate_is_watched_as_by_the_three_lines() -> None:
    """Rows to the byte, weights to the bit; a number belongs to the step of its forward, logged before or after the
    update, and to all of its micro batches."""
    hand, lines = trained(accelerator(), lambda _, model, optimizer: by_hand(model, optimizer))
    lines.stop()
    last = {step: (step + 1) * MICRO_BATCHES - 1 for step in range(STEPS)}
    for log in ("before", "after"):
        tool = accelerator(log_with=[ProbeTracker(CONFIG)])
        watched, monitor = trained(tool, lambda each, *_: watch(each), log)
        assert tool.get_tracker("probe", unwrap=True) is monitor
        tool.trackers[0].finish()
        assert all(map(torch.equal, hand.parameters(), watched.parameters()))
        assert rows_of(monitor) == rows_of(lines)
        assert numbers_of(monitor, "micro") == last
        assert [*numbers_of(monitor, "val_loss")] == [STEPS - 1]
        assert watcher_of([watched]) is None
        assert not watched._forward_pre_hooks
        assert monitor.faults == {}


def test_without_a_tracker_the_monitor_is_returned_and_counts_on() -> None:
    """The number of the first step is that of the updates that the optimizer counts."""
    tool = accelerator()
    plain = net()
    model, optimizer = tool.prepare(plain, torch.optim.AdamW(plain.parameters(), 0.1))
    for _ in range(2):
        model(torch.ones(2, 3)).mean().backward()
        optimizer.step()
    monitor = watch(tool, CONFIG, ops=["max"])
    assert isinstance(monitor, Monitor)
    assert monitor.step == 2
    assert [*monitor.settings.ops] == ["max"]
    assert watch(tool, CONFIG) is monitor
    monitor.stop()


def test_wrong_use_of_accelerate_is_refused() -> None:
    """Before `prepare`, and with two configurations."""
    with pytest.raises(ValueError, match=r"call it after accelerator\.prepare"):
        watch(accelerator(), CONFIG)
    with pytest.raises(ValueError, match="expected one configuration"):
        watch(accelerator(log_with=[ProbeTracker()]), CONFIG)
    with pytest.raises(TypeError, match=r"watch: expected an Accelerator, got .*Linear.*; pass the one"):
        watch(torch.nn.Linear(2, 2), CONFIG)


# Composer.


class ComposersCallback:
    """Stand-in for ``composer.core.Callback`` (0.32): the trainer calls the method with an event's name."""

    def run_event(self, event: str, state: Any, logger: Any) -> None:
        getattr(self, event, lambda *_: None)(state, logger)


def fit(callback: Any, model: Any, optimizer: Any, begun: int) -> list[float]:
    """Stand-in for ``composer.Trainer.fit``: events in its order; ``state.loss`` is the last microbatch's, and its
    ``total_loss_dict`` that of the batch."""
    state = SimpleNamespace(model=model, optimizers=[optimizer], loss=None, total_loss_dict={})
    state.timestamp = SimpleNamespace(batch=SimpleNamespace(value=begun))
    totals = []
    callback.run_event("fit_start", state, None)
    for batch in range(3):
        total = 0.0
        for micro in range(2):
            state.loss = model(torch.full((2, 3), batch + micro / 2)).square().mean() / 2
            total += float(state.loss)
            state.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        state.total_loss_dict = {"loss/train/total": total}
        totals.append(total)
        state.timestamp.batch.value += 1
        callback.run_event("batch_end", state, None)
    callback.run_event("fit_end", state, None)
    callback.run_event("close", state, None)
    return totals


def test_composers_fit_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the batch of its timestamp on, with the loss over all microbatches."""
    package, core = ModuleType("composer"), ModuleType("composer.core")
    core.Callback = ComposersCallback  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "composer", package)
    monkeypatch.setitem(sys.modules, "composer.core", core)
    monkeypatch.delitem(sys.modules, "probe.pytorch.callbacks.composer", raising=False)
    from probe.pytorch.callbacks.composer import ProbeCallback

    callback, model = ProbeCallback(CONFIG), net()
    totals = fit(callback, model, torch.optim.SGD(model.parameters(), 0.1), begun=5)
    assert numbers_of(callback.monitor, "loss") == pytest.approx(dict(enumerate(totals, 5)), rel=1e-5)
    assert not callback.monitor.monitoring
    monkeypatch.delitem(sys.modules, "probe.pytorch.callbacks.composer")


# torchtitan.


class MetricsProcessor:
    """Stand-in for ``torchtitan.components.metrics.MetricsProcessor`` (0.3): the trainer sets ``optimizers`` and
    ``model_parts`` on it, calls ``log`` after an update, from step 1 on, and ``close`` at the end."""

    def __init__(self) -> None:
        self.logged: list[int] = []
        self.optimizers: Any = None
        self.model_parts: Any = None

    def log(
        self,
        step: int,
        global_avg_loss: float,
        global_max_loss: float,
        grad_norm: float,
        extra_metrics: dict[str, Any] | None = None,
    ) -> None:
        self.logged.append(step)

    def close(self) -> None:
        self.logged.append(-1)


def test_torchtitans_metrics_watch_its_parts(tmp_path: Path) -> None:
    """What it logs is recorded for the step that has ended, and torchtitan's own logging goes on."""
    from probe.pytorch.callbacks.torchtitan import WatchedMetrics

    class Metrics(WatchedMetrics, MetricsProcessor):
        probe_config = CONFIG

    with pytest.raises(TypeError, match=r"expected MetricsProcessor behind WatchedMetrics.*; write class Own\(Watched"):
        type("Own", (MetricsProcessor, WatchedMetrics), {})
    metrics, model = Metrics(), net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    assert metrics.monitor is None
    metrics.optimizers, metrics.model_parts = [optimizer], [model]
    for step in range(1, 4):
        model(torch.ones(2, 3)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        metrics.log(step, 10.0 * step, global_max_loss=1.0, grad_norm=2.0, extra_metrics={"lr": 0.5})
    metrics.close()
    assert metrics.logged == [1, 2, 3, -1]
    assert numbers_of(metrics.monitor, "loss") == {0: 10.0, 1: 20.0, 2: 30.0}
    assert numbers_of(metrics.monitor, "lr") == {0: 0.5, 1: 0.5, 2: 0.5}
    assert not metrics.monitor.monitoring
