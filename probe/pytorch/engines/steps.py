"""Gradients, state and training steps of each kind of optimizer.

The first engine that knows the optimizer is used; ``native`` knows every optimizer with a ``step``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch.optim import optimizer as base

from probe.core.backend.optimizer_kinds import bound_gradient, chooser, dispatched
from probe.core.backend.protocols import Remove
from probe.core.door import FaultCounter, Hook
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

    with ExitStack() as placed:
        placed.callback(base.register_optimizer_step_pre_hook(Hook(faults, "optimizer", before)).remove)
        placed.callback(base.register_optimizer_step_post_hook(Hook(faults, "optimizer", after)).remove)
        return placed.pop_all().close


def made_steps(optimizer: Any) -> int:
    """Return the number of updates that ``optimizer`` counts in its state or its groups, in earlier runs too; 0 if it
    counts none."""
    if (chained := getattr(optimizer, "chained_optimizers", None)) is not None:  # of Megatron-Core
        return max(map(made_steps, chained), default=0)
    state, groups = getattr(optimizer, "state", None), getattr(optimizer, "param_groups", None)
    states = [*(state.values() if isinstance(state, Mapping) else ()), *(groups or ())]
    counts = [entry.get("step", 0) for entry in states if isinstance(entry, Mapping)]
    return max((int(count) for count in counts), default=0)
