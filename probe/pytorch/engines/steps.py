"""Gradients, state and training steps of each kind of optimizer.

The first engine that knows the optimizer is used; ``native`` knows every optimizer with a ``step``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from probe.core.backend.optimizer_kinds import bound_gradient, chooser, dispatched
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


def made_steps(optimizer: Any) -> int:
    """Return the number of updates that ``optimizer`` counts in its state or its groups, in earlier runs too; 0 if it
    counts none."""
    if (chained := getattr(optimizer, "chained_optimizers", None)) is not None:  # of Megatron-Core
        return max(map(made_steps, chained), default=0)
    state, groups = getattr(optimizer, "state", None), getattr(optimizer, "param_groups", None)
    states = [*(state.values() if isinstance(state, Mapping) else ()), *(groups or ())]
    counts = [entry.get("step", 0) for entry in states if isinstance(entry, Mapping)]
    return max((int(count) for count in counts), default=0)
