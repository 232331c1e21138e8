"""Oddities of cells and optimizers, looked for in a few updates: see :mod:`probe.core.checks.oddities`. Nothing of the
user's runs, and nothing waits for a device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import mindspore
import numpy as np
from mindspore import nn
from mindspore.nn.layer.normalization import _BatchNorm

from probe.core.checks.oddities import LOST, MOMENTUM, settings_of
from probe.mindspore import gradients, tensors
from probe.mindspore.optimizers import table
from probe.mindspore.optimizers.rates import on_host, rates

ROUNDING = frozenset({"Adam", "AdamW", "AdamWeightDecay", "Momentum", "SGD"})
"""Optimizers whose updates round weights to the nearest number."""
MOST_ROUNDED, MOST_ELEMENTS = 8, 1 << 16
"""Weights of half precision, and elements of one, that are looked at."""


def oddities(models: Iterable[Any], optimizer: Any) -> Callable[[], Mapping[str, tuple[str, ...]]]:
    """Return a function that returns the oddities, by kind, each with its places: ``norm momentum``, ``betas``,
    ``decay`` and ``rounded away``."""
    named = [pair for model in models if isinstance(model, nn.Cell) for pair in model.cells_and_names()]
    norms = ((name, cell) for name, cell in named if isinstance(cell, _BatchNorm) and cell.training)
    groups, kind = [*options(optimizer)], type(optimizer).__name__
    kinds = {
        "norm momentum": tuple(name for name, norm in norms if MOMENTUM <= norm.momentum < 1),
        "rounded away": tuple(_lost(optimizer, groups)) if kind in ROUNDING else (),
        **settings_of(kind, groups),
    }
    return lambda: kinds


def options(optimizer: Any) -> Iterator[dict[str, Any]]:
    """Yield the options of each group, or of each parameter where MindSpore keeps them so, under torch's names; those
    that the host does not know are left out."""
    own = getattr(optimizer, "param_groups", None)
    if own is None:
        decays = getattr(optimizer, "weight_decay", 0.0)
        decays = [_decay(optimizer, decay) for decay in (decays if isinstance(decays, tuple) else (decays,))]
        betas = [getattr(optimizer, name, None) for name in ("beta1", "beta2")]
        shared = {"momentum": getattr(optimizer, "momentum", None), "betas": betas}
        known = rates(optimizer)
        number = max(len(known), len(decays)) if known else 0
        own = [
            {**shared, "lr": known[place % len(known)], "weight_decay": decays[place % len(decays)]}
            for place in range(number)
        ]
    for group in own:
        read = partial(on_host, optimizer)
        numbers = {name: read(group.get(name)) for name in ("lr", "weight_decay", "momentum")}
        options: dict[str, Any] = {name: value for name, value in numbers.items() if not math.isnan(value)}
        pair = tuple(map(read, group.get("betas") or ()))
        yield options | ({"betas": pair} if pair and not any(map(math.isnan, pair)) else {})


def _decay(optimizer: Any, value: Any) -> float:
    """Return a weight decay without the loss scale, which MindSpore multiplies it by, and wraps schedules for."""
    if isinstance(value, nn.Cell):
        return on_host(optimizer, getattr(value, "weight_decay", value))
    return on_host(optimizer, value) / float(getattr(optimizer, "loss_scale", 1.0))


def _lost(optimizer: Any, groups: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the names of the largest weights of half precision whose updates rounding loses, if they are half of those
    that were looked at or more."""
    rate = max((group.get("lr", math.inf) for group in groups), default=math.inf)
    halves = (parameter for parameter in table.owned(optimizer) if _is_half(parameter))
    looked = sorted(halves, key=lambda parameter: -int(parameter.size))[:MOST_ROUNDED]
    lost = [parameter.name for parameter in looked if _hardly_moves(parameter, rate, groups[0].get("momentum"))]
    yield from lost if 2 * len(lost) >= len(looked) else ()


def _is_half(parameter: Any) -> bool:
    is_matrix = tensors.is_tensor(parameter) and parameter.ndim > 1
    return is_matrix and parameter.dtype == mindspore.float16 and tensors.on_host(parameter)


def _hardly_moves(parameter: Any, rate: float, momentum: float | None) -> bool:
    gradient = gradients.present(parameter)
    if not isinstance(gradient, mindspore.Tensor) or not tensors.on_host(gradient):
        return False
    weights, slopes = (tensors.numbers(x).reshape(-1)[:MOST_ELEMENTS].astype(np.float32) for x in (parameter, gradient))
    sizes = (slopes != 0).astype(np.float32) if momentum is None else np.abs(slopes) / max(1 - momentum, 1e-3)
    # half of the distance to the next number is a quarter of the precision of a weight, or more
    is_lost = rate * sizes < np.abs(weights) * (float(np.finfo(np.float16).eps) / 4)
    return bool((is_lost & (slopes != 0)).sum() > LOST * (slopes != 0).sum() > 0)
