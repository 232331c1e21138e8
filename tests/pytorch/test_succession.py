"""Optimizers that are replaced, in the ways that torch has."""

from __future__ import annotations

import gc
import weakref

import pytest

from tests.pytorch.toys import TinyNet, X
from tests.pytorch.watching import EVERYTHING, read
from tests.required import require

torch = require("torch")

from torch.optim import optimizer as every  # noqa: E402

from probe.pytorch import TrainerMon  # noqa: E402 - only where torch is


def test_parameters_and_optimizer_are_replaced() -> None:
    """After ``load_state_dict(assign=True)`` and a new optimizer the new parameters go by the same names."""
    model = TinyNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor = TrainerMon(EVERYTHING)
    monitor.set_monitor(model, 1, optimizer)
    for _ in range(2):
        for _ in range(3):
            model(X).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()}, assign=True)
        model.requires_grad_()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor.stop()
    rows = read(monitor.output_directory)
    assert monitor.step == 6
    assert list(monitor.faults.values()) == [1]
    for signal in ("grad_reduced", "param_updated", "grad_unreduced"):
        found = {(row.step, row.name) for row in rows if row.signal == signal}
        names = ("fc.weight", "fc.bias", "fc2.weight")
        steps = range(6) if signal == "grad_unreduced" else (0, 1, 2, 4, 5)  # the new parameters are there at once
        assert found == {(step, name) for step in steps for name in names}


def test_optimizers_that_were_made_anew_are_let_go() -> None:
    """Their moments are as large as the model twice over: they are freed as without the monitor, also the first."""
    model, made = TinyNet(), list[weakref.ref[object]]()
    monitor = TrainerMon(EVERYTHING)
    gc.disable()
    try:
        for step in range(4):
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            made.append(weakref.ref(optimizer))
            if not step:
                monitor.set_monitor(model, 1, optimizer)
            model(X).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert [reference() is not None for reference in made] == [False, False, False, True]
    finally:
        gc.enable()
        monitor.stop()
    assert (monitor.step, monitor.faults) == (4, {})


def test_a_new_optimizer_may_leave_out_what_is_frozen() -> None:
    """As with LoRA: its steps are counted and recorded, as those of an optimizer of all parameters."""
    model = TinyNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor = TrainerMon({"wg_distribution": True, "ops": ["norm"], "alert": {"rules": []}})
    monitor.set_monitor(model, 1, optimizer)
    for step in range(5):
        if step == 2:
            model.fc.requires_grad_(False)
            optimizer = torch.optim.SGD(model.fc2.parameters(), lr=0.01)
        model(X).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    monitor.stop()
    steps = {
        row.step for row in read(monitor.output_directory) if (row.signal, row.name) == ("grad_reduced", "fc2.weight")
    }
    assert (monitor.step, steps, list(monitor.faults.values())) == (5, {0, 1, 2, 3, 4}, [])


class Lookahead(torch.optim.Optimizer):  # type: ignore[misc, name-defined]
    """Steps through another optimizer of the same parameters."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self, closure: object = None) -> None:
        self.inner.step()


@pytest.mark.parametrize("outer", [False, True])
def test_optimizers_within_others_take_no_place(outer: bool) -> None:
    """Whichever of two that step together is watched, neither is taken for a successor."""
    model = TinyNet()
    inner = torch.optim.SGD(model.parameters(), lr=0.01)
    wrapper = Lookahead(inner)
    monitor = TrainerMon(EVERYTHING)
    monitor.set_monitor(model, 1, wrapper if outer else inner)
    for _ in range(3):
        model(X).sum().backward()
        wrapper.step()
        wrapper.zero_grad()
    monitor.stop()
    assert (monitor.step, monitor.faults) == (3, {})


def test_a_scaler_goes_on_with_the_new_optimizer() -> None:
    """Gradients are unscaled, and steps that the scaler skips are steps, as with the first one."""
    model = TinyNet()
    monitor = TrainerMon({"wg_distribution": True, "ops": ["norm", "infs"]})
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for number in range(2):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        if not number:
            monitor.set_monitor(model, 1, optimizer)
        for step in range(4):
            loss = model(X).sum() * (float("inf") if step == 2 else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    monitor.stop()
    norms = {
        row.step: values["norm"] for row, values in read(monitor.output_directory).items() if row.name == "fc.bias"
    }
    assert monitor.step == 8
    assert norms[0] == norms[1] == norms[3] == norms[4] == norms[5] == norms[7]


def test_hooks_of_all_optimizers_are_taken_away() -> None:
    """After ``stop()`` torch has no hook of ours for optimizers that nobody watches; one that an interrupted end of
    another monitor has left goes, too."""

    def hooks() -> tuple[dict[int, object], dict[int, object]]:
        return dict(every._global_optimizer_pre_hooks), dict(every._global_optimizer_post_hooks)

    before = hooks()
    for _ in range(2):
        model = TinyNet()
        monitor = TrainerMon({"wg_distribution": True})
        monitor.set_monitor(model, 1, torch.optim.SGD(model.parameters(), lr=0.0))
        watched = hooks()
        monitor.stop()
        assert [len(now) - len(then) for now, then in zip(watched, hooks(), strict=True)] == [1, 1]
    assert all(now.items() <= then.items() for now, then in zip(hooks(), before, strict=True))
