"""Monitors that go with their model while other models train."""

from __future__ import annotations

import gc
import os

from probe.core.faults import Faults
from probe.pytorch import TrainerMon
from probe.pytorch.engines.native import EveryStep
from tests.required import require

torch = require("torch")


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A model and its optimizer."""
    model = torch.nn.Linear(4, 4)
    return model, torch.optim.SGD(model.parameters(), 0.1)


def update(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """One update."""
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()


def test_a_monitor_that_is_dropped_in_an_update_of_another_optimizer_leaves_its_hooks_be() -> None:
    """torch iterates over the hooks of all optimizers where the garbage is collected; they go with the next monitor."""
    from torch.optim import optimizer as base

    before = len(base._global_optimizer_post_hooks)
    watched = [trained()]
    monitor = TrainerMon({"wg_distribution": True, "ops": ["norm"]})
    monitor.set_monitor(watched[0][0], grad_acc_steps=1, optimizer=watched[0][1])
    update(*watched[0])
    other, calls = trained(), []

    def drop(*_: object) -> None:
        nonlocal monitor
        if not calls:
            monitor.flush()
            watched.clear()
            monitor = None
            gc.collect()
        calls.append(len(base._global_optimizer_post_hooks))

    handles = [base.register_optimizer_step_post_hook(hook) for hook in (drop, lambda *_: None)]
    update(*other)
    for handle in handles:
        handle.remove()
    assert calls == [before + 3]
    update(*other)
    model, optimizer = trained()
    monitor = TrainerMon({"wg_distribution": True, "ops": ["norm"]})
    monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizer)
    update(model, optimizer)
    monitor.stop()
    assert len(base._global_optimizer_post_hooks) == before


def test_a_forked_process_hears_its_own_listeners_alone() -> None:
    """Those of its parent have no run there."""
    every, calls = EveryStep(), list[str]()
    remove = every.add(lambda *_: calls.append("parent"), lambda *_: None, Faults())
    model, optimizer = trained()
    pid = os.fork()
    if not pid:
        every.add(lambda *_: calls.append("child"), lambda *_: None, Faults())
        update(model, optimizer)
        os._exit(calls != ["child"])
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    update(model, optimizer)
    remove()
    assert calls == ["parent"]
