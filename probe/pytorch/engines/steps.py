"""Gradients, state and training steps of each kind of optimizer.

The first engine that knows the optimizer is used; ``native`` knows every optimizer with a ``step``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from probe.core.backend.protocols import Adam, Remove, Shard, StepListener
from probe.pytorch.engines import native
from probe.pytorch.engines.engine import Optimizers
from probe.pytorch.engines.table import ENGINES

DIALECTS: tuple[Optimizers, ...] = (
    *(engine.optimizers for engine in ENGINES.values() if engine.optimizers is not None),
    native,
)


def _dialect(optimizer: Any) -> Optimizers:
    """Return the functions for ``optimizer``: those of its engine, else ``native``."""
    return next(dialect for dialect in DIALECTS if dialect.knows(optimizer))


def check(optimizer: Any) -> None:
    """Refuse an object that updates no parameters (a scheduler of learning rates, a scaler), or whose numbers cannot
    be read.

    Raises:
        ValueError: with the object's class and the remedy.
    """
    dialect = _dialect(optimizer)
    for engine in ENGINES.values():
        if engine.optimizers is dialect and engine.check_optimizer is not None:
            engine.check_optimizer(optimizer)
    if dialect is native and getattr(optimizer, "param_groups", None) is None:
        raise ValueError(
            "set_monitor: optimizer: expected what updates the parameters, an object with step() and param_groups, got "
            f"{type(optimizer)}; pass the one that trains"
        )


def on_step(optimizer: Any, listener: StepListener) -> Remove:
    """Call ``listener`` at every training step of ``optimizer``."""
    return _dialect(optimizer).on_step(optimizer, listener)


def value(optimizer: Any, parameter: torch.nn.Parameter) -> torch.Tensor | Shard | None:
    """Return the part of ``parameter`` that this process holds."""
    return _dialect(optimizer).value(optimizer, parameter)


def gradient(optimizer: Any, parameter: torch.nn.Parameter, main_grad: bool) -> torch.Tensor | Shard | None:
    """Return the gradient that ``optimizer`` will apply."""
    return _dialect(optimizer).gradient(optimizer, parameter, main_grad)


def holds(optimizer: Any, parameter: torch.nn.Parameter, main_grad: bool) -> bool:
    """Return whether ``optimizer`` will apply the tensor in ``grad``. Optimizers of DeepSpeed and Megatron read buffers
    of their own instead, which always exist."""
    if _dialect(optimizer) is not native or (main_grad and getattr(parameter, "main_grad", None) is not None):
        return False
    return parameter.grad is not None


def state(optimizer: Any, parameter: torch.nn.Parameter) -> Mapping[str, torch.Tensor | Shard]:
    """Return the optimizer's tensors for ``parameter``."""
    return _dialect(optimizer).state(optimizer, parameter)


def adam(optimizer: Any) -> Callable[[torch.nn.Parameter], Adam | None]:
    """Return a function from a parameter to the hyperparameters of its update, None if it is not Adam-like."""
    return _dialect(optimizer).adam(optimizer)


def state_names(optimizer: Any) -> Mapping[str, str]:  # noqa: ARG001
    """Return an empty mapping: rows have torch's own names."""
    return {}


def owned(optimizer: Any) -> list[torch.nn.Parameter]:
    """Return the parameters that ``optimizer`` updates."""
    return _dialect(optimizer).owned(optimizer)
