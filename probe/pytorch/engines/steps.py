"""Gradients, state and training steps of each kind of optimizer.

The first engine that knows the optimizer is used; ``native`` knows every optimizer with a ``step``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch.optim import optimizer as base

from probe.core.backend.optimizer_kinds import bound_gradient, chooser, dispatched
from probe.core.backend.protocols import Remove
from probe.core.door import FaultCounter, Hook
from probe.core.faults import Faults
from probe.pytorch.engines import native
from probe.pytorch.engines.engine import Optimizers
from probe.pytorch.engines.table import ENGINES

DIALECTS: tuple[Optimizers, ...] = (
    *(engine.optimizers for engine in ENGINES.values() if engine.optimizers is not None),
    native,
)
_dialect = chooser(DIALECTS)
adam, on_step, owned, state, value = (
    dispatched(_dialect, name) for name in ("adam", "on_step", "owned", "state", "value")
)
gradients_of = bound_gradient(_dialect)


def is_native(optimizer: Any) -> bool:
    """Return whether ``optimizer`` is of no engine, so that its parameters hold what it applies."""
    return _dialect(optimizer) is native


def check_optimizer(optimizer: Any) -> None:
    """Refuse an object that takes no steps or updates no parameters (a scheduler of learning rates, a scaler), or whose
    numbers cannot be read.

    Raises:
        ValueError: with the object's class and the remedy.
    """
    if not callable(getattr(optimizer, "step", None)):
        raise ValueError(
            f"set_monitor: optimizer: expected an object with step(), got {type(optimizer)}; pass the one that trains"
        )
    dialect = _dialect(optimizer)
    for engine in ENGINES.values():
        if engine.optimizers is dialect and engine.check_optimizer is not None:
            engine.check_optimizer(optimizer)
    if dialect is native and getattr(optimizer, "param_groups", None) is None:
        raise ValueError(
            "set_monitor: optimizer: expected what updates the parameters, an object with step() and param_groups, got "
            f"{type(optimizer)}; pass the one that trains"
        )


def holds(optimizer: Any, parameter: torch.nn.Parameter, main_grad: bool) -> bool:
    """Return whether ``optimizer`` will apply the tensor in ``grad``. Optimizers of DeepSpeed and Megatron read buffers
    of their own instead, which always exist."""
    if _dialect(optimizer) is not native or (main_grad and getattr(parameter, "main_grad", None) is not None):
        return False
    return parameter.grad is not None


def state_names(optimizer: Any) -> Mapping[str, str]:  # noqa: ARG001
    """Return an empty mapping: rows have torch's own names."""
    return {}


class EveryStep:
    """The listeners to the updates of all optimizers that inherit from torch's, behind one pair of hooks.

    torch iterates over these hooks in each update, and a dropped monitor ends wherever garbage is collected: also in an
    update of another optimizer, or on another thread meanwhile. So listeners come and go in a tuple, and the hooks stay
    without effect if an update may be under way as the last one leaves.
    """

    def __init__(self) -> None:
        self._listeners: tuple[tuple[Hook, Hook], ...] = ()
        self._placed: list[Remove] = []
        self._updating = set[int]()
        """Threads on which an update has begun, and has not ended; one that has raised, until the next one ends."""

    def add(self, began: Hook, ended: Hook) -> Remove:
        """Call ``began`` before and ``ended`` after each update; return a function that ends it."""
        pair = began, ended
        self._listeners += (pair,)
        if not self._placed:
            self._placed.append(base.register_optimizer_step_pre_hook(Hook(Faults(), "optimizer", self._before)).remove)
            self._placed.append(base.register_optimizer_step_post_hook(Hook(Faults(), "optimizer", self._after)).remove)
        return partial(self._leave, pair)

    def _before(self, optimizer: Any, *arguments: object) -> None:
        self._updating.add(threading.get_ident())
        for began, _ in self._listeners:
            began(optimizer, *arguments)

    def _after(self, optimizer: Any, *arguments: object) -> None:
        for _, ended in self._listeners:
            ended(optimizer, *arguments)
        self._updating.discard(threading.get_ident())

    def _leave(self, pair: tuple[Hook, Hook]) -> None:
        self._listeners = tuple(entry for entry in self._listeners if entry is not pair)
        others = {thread.ident for thread in threading.enumerate() if thread is not threading.current_thread()}
        if not self._listeners and others.isdisjoint(self._updating) and not native.updates():
            while self._placed:
                self._placed.pop()()


EVERY_STEP = EveryStep()
"""The listeners of this process."""


def on_every_step(began: Callable[..., None], ended: Callable[..., None], faults: FaultCounter) -> Remove:
    """Call ``began`` before and ``ended`` after each update by an optimizer that inherits from torch's."""
    initial: set[int] = set()

    def before(optimizer: Any, *arguments: object) -> None:
        if native.initializes_state(optimizer):
            initial.add(id(optimizer))
            return
        initial.discard(id(optimizer))
        began(optimizer, *arguments)

    def after(optimizer: Any, *arguments: object) -> None:
        if id(optimizer) not in initial:
            ended(optimizer, *arguments)

    return EVERY_STEP.add(Hook(faults, "optimizer", before), Hook(faults, "optimizer", after))


def made_steps(optimizer: Any) -> int:
    """Return the number of updates that ``optimizer`` counts in its state or its groups, in earlier runs too; 0 if it
    counts none."""
    if (chained := getattr(optimizer, "chained_optimizers", None)) is not None:  # of Megatron-Core
        return max(map(made_steps, chained), default=0)
    state, groups = getattr(optimizer, "state", None), getattr(optimizer, "param_groups", None)
    states = [*(state.values() if isinstance(state, Mapping) else ()), *(groups or ())]
    counts = [entry.get("step", 0) for entry in states if isinstance(entry, Mapping)]
    return max((int(count) for count in counts), default=0)
