"""Floating-point operations of a forward and its backward, counted on a copy of the model without data."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from probe.core.backend.protocols import FlopCount, Remove
from probe.core.backend.pytree import leaves


def on_first_forward(model: torch.nn.Module, receive: Callable[[FlopCount], None]) -> Remove:
    """Call ``receive`` at the first forward of ``model`` in training, with a function that counts the operations.

    A model that is compiled, or whose parameters are no plain tensors (FSDP, DTensor), is left alone.
    """
    if _compiled(model) or any(type(each) is not torch.nn.Parameter for each in model.parameters()):
        return lambda: None
    if any(type(each.data) is not torch.Tensor for each in model.parameters()):
        return lambda: None
    waits = [receive]

    def began(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if waits and module.training and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            waits.pop()(counter(module, args, kwargs))

    return model.register_forward_pre_hook(began, with_kwargs=True).remove


def _compiled(model: torch.nn.Module) -> bool:
    return any(type(module).__name__ == "OptimizedModule" or module._compiled_call_impl for module in model.modules())


def counter(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> FlopCount:
    """Return a function that counts the operations of ``model(*args, **kwargs)`` and its backward, as
    ``torch.utils.flop_counter`` counts them (a multiplication and an addition are two).

    The function works on tensors of the device ``meta``, which have shapes and no elements: it computes nothing and
    leaves the model as it is. It may be called on any thread, and raises if the model cannot run without data.
    """
    given = copy.deepcopy((args, kwargs), _without_data([*leaves((args, kwargs))]))

    def count() -> float:
        twin = copy.deepcopy(model, _without_data([*model.parameters(), *model.buffers()]))
        for module in twin.modules():
            module._forward_hooks.clear()
            module._forward_pre_hooks.clear()
        with FlopCounterMode(display=False) as counted, torch.enable_grad():
            outputs = [each for each in leaves(twin(*given[0], **given[1])) if isinstance(each, torch.Tensor)]
            roots = [each for each in outputs if each.requires_grad]
            torch.autograd.backward(roots, [torch.ones_like(each) for each in roots])
        return float(counted.get_total_flops())

    return count


def _without_data(tensors: list[Any]) -> dict[int, Any]:
    """Return a memo for ``copy.deepcopy`` in which each tensor has a twin without elements."""
    memo: dict[int, Any] = {}
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor):
            twin = torch.empty_like(tensor, device="meta")
            own = isinstance(tensor, torch.nn.Parameter)
            memo[id(tensor)] = torch.nn.Parameter(twin, requires_grad=tensor.requires_grad) if own else twin
    memo[id(memo)] = list(tensors)  # as deepcopy itself does: originals live as long as their identities count
    return memo
