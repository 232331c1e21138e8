"""Repeated forward of a model with other tokens at the end, in evaluation mode and without gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from probe.core.prechecks.trial import Causality
from probe.pytorch.engines.names import inside
from probe.pytorch.prechecks.calls import HeldCall
from probe.pytorch.prechecks.digests import tensors_in

SEED = 0
MOST_FEATURES = 1024
"""Numbers of a position that are compared: one of a vocabulary has many."""


def tried(call: HeldCall, axis: int) -> Causality | str:
    """Call a model again with what it got and with other tokens in the second half, then with another first sample;
    return what has changed, or why that cannot be decided, as a clause.

    Args:
        axis: axis of the tokens that is time.
    """
    tokens, length, samples = call.tokens, call.tokens.shape[axis], 1 - axis
    cut, original, others = length // 2, call.tokens.clone(), _others(call.tokens)
    if not cut or others is None:
        return "the tokens are too few"
    model = _bare(call.model)
    with _evaluating(model), torch.no_grad():
        before = _outputs(model, call)
        tokens.narrow(axis, cut, length - cut).copy_(others.narrow(axis, cut, length - cut))
        later = _changes(before, _outputs(model, call), tokens.shape, axis)
        tokens.copy_(original).narrow(samples, 0, 1).copy_(others.narrow(samples, 0, 1))
        apart = _changes(before, _outputs(model, call), tokens.shape, samples)
    if not later:
        return "the model returns no numbers for each position"
    return Causality(_share(later[:cut], later[cut:]), cut, _share(apart[1:], apart[:1]))


def _share(at: Sequence[float], by: Sequence[float]) -> float:
    most = max(by, default=0.0)
    return max(at, default=0.0) / most if most > 0 else math.nan


def _others(tokens: torch.Tensor) -> torch.Tensor | None:
    """Return other tokens at every place, of those that there are; None if there is one."""
    values, places = tokens.unique(return_inverse=True)
    return values[(places + 1) % len(values)] if len(values) > 1 else None


def _bare(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model inside wrappers that divide no parameters: these would talk to other ranks."""
    kinds = torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel, torch._dynamo.OptimizedModule
    while isinstance(model, kinds):
        model = getattr(model, inside(model) or "module")
    return model


@contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Put all modules into evaluation mode, past a method of the model's own."""
    modes = [(module, module.training) for module in model.modules()]
    for module, _ in modes:
        module.training = False
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _outputs(model: torch.nn.Module, call: HeldCall) -> list[torch.Tensor]:
    torch.manual_seed(SEED)
    result: Any = model(*call.args, **call.kwargs)
    values = result if isinstance(result, torch.Tensor | list | tuple | dict) else vars(result)
    return [
        output[..., :MOST_FEATURES].double()
        for output in tensors_in(values)
        if output.is_floating_point() and output.dim()
    ]


def _changes(
    before: Sequence[torch.Tensor], after: Sequence[torch.Tensor], shape: torch.Size, axis: int
) -> list[float]:
    """Return the largest change along an axis of the tokens, of the outputs that have a number for each token."""
    most = torch.zeros(shape[axis], dtype=torch.float64)
    seen = False
    for one, other in zip(before, after, strict=True):
        if one.shape[:2] != shape and one.shape[0] == shape[0] * shape[1]:
            one, other = one.reshape(*shape, -1), other.reshape(*shape, -1)  # noqa: PLW2901 - flattened by the model
        if one.shape[:2] == shape:
            change = (one - other).abs().movedim(axis, 0).flatten(1).amax(1).nan_to_num(0.0, 0.0, 0.0)
            most, seen = torch.maximum(most, change.cpu()), True
    return most.tolist() if seen else []
