"""Unreduced gradients under DeepSpeed's optimizers, which empty ``grad`` as soon as a gradient has arrived."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from probe.core.backend.protocols import Guard, Remove, Shard
from probe.core.door import weakly
from probe.pytorch.engines.deepspeed import zero
from probe.pytorch.engines.engine import Listen, Parameter
from probe.pytorch.hook_handles import TensorHook, on_own


def homes(model: torch.nn.Module) -> Iterator[tuple[Parameter, Any]]:
    """Yield the homes of the parameters of optimizers in use."""
    of_model = {id(parameter) for parameter in model.parameters()}
    for optimizer in zero.in_use:
        home = _home(optimizer)
        for parameter in zero.owned(optimizer) if home else ():
            if id(parameter) in of_model:
                yield parameter, home


def _home(optimizer: Any) -> DeepSpeedHome | None:
    """Return the home of the parameters of an optimizer that empties ``grad``; None for others, which leave it."""
    if hasattr(optimizer, "fp32_groups_gradients"):
        return DeepSpeedHome(optimizer, _copied)
    if hasattr(optimizer, "averaged_gradients"):
        apart = getattr(optimizer, "partition_gradients", True)
        return DeepSpeedHome(optimizer, None if apart else _attached)
    return None


def _copied(parameter: Any) -> torch.Tensor | None:
    """Return the sum so far of a BF16_Optimizer: None before the first backward, zeros after a step."""
    gradient = getattr(parameter, "_hp_grad", None)
    return None if gradient is None else gradient.view_as(parameter)


def _attached(parameter: Any) -> torch.Tensor | None:
    """Return the sum so far of ZeRO-1, if its precision differs from that of the gradients."""
    return getattr(parameter, "grad_accum", None)


class DeepSpeedHome:
    """Home of the parameters of one optimizer.

    Args:
        summed: returns the sum of earlier backwards that is kept elsewhere than in ``grad``; None if each backward is
            reduced by itself.
    """

    def __init__(self, optimizer: Any, summed: Callable[[Any], torch.Tensor | None] | None) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._summed = summed

    def on_gradient(self, parameter: Parameter, listen: Listen, *, own: bool, main_grad: bool, guard: Guard) -> Remove:  # noqa: ARG002
        """Listen before DeepSpeed's own hooks empty ``grad`` and, at the last gradient, reduce the rest."""
        summed = self._summed
        if own or summed is None:
            apart = summed is None
            return on_own(parameter, lambda gradient: listen(gradient, apart=apart), guard)

        def accumulated(reached: Parameter) -> None:
            total = summed(reached)
            if reached.grad is not None:
                listen(reached.grad if total is None else total + reached.grad)

        hook = guard(accumulated)
        handle = parameter.register_post_accumulate_grad_hook(weakly(hook))
        _put_first(parameter._post_accumulate_grad_hooks, handle.id)
        return TensorHook(handle, parameter, "_post_accumulate_grad_hooks", hook)

    def piece(self, parameter: Parameter, tensor: torch.Tensor) -> torch.Tensor | Shard:
        """Return the parameter with its coverage under the optimizer; other tensors unchanged."""
        optimizer = self._optimizer()
        return zero.layout(optimizer).value(parameter) if optimizer is not None and tensor is parameter else tensor

    def leaf(self, parameter: Parameter) -> torch.Tensor | None:
        """Return the parameter itself."""
        return parameter


def _put_first(hooks: Any, key: int) -> None:
    """Put a hook first in an ``OrderedDict`` that torch reads as a plain dict, so that ``move_to_end`` has no
    effect."""
    ours, others = hooks.pop(key), dict(hooks)
    hooks.clear()
    hooks[key] = ours
    hooks.update(others)
