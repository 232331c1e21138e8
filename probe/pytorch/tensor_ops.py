"""Core's array operations on torch tensors, on any device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.utils.parametrize import is_parametrized

from probe.core.backend import numpy_ops
from probe.pytorch.dtensor import local
from probe.pytorch.tensors import unseen

ON_HOST, ON_DEVICE = 1 << 20, 1 << 24
"""Elements of a block: as many as a core's cache holds, or as keep a device busy."""


def block(x: torch.Tensor) -> int:
    """Elements of a block on the device of ``x``."""
    return ON_HOST if x.device.type == "cpu" else ON_DEVICE


@contextmanager
def quiet() -> Iterator[None]:
    """Autocast would compute products in half precision."""
    with ExitStack() as inside:
        inside.enter_context(torch.no_grad())
        inside.enter_context(unseen())
        for device in filter(_there, ("cpu", "cuda", "npu")):
            inside.enter_context(torch.autocast(device, enabled=False))
        yield


def _there(device: str) -> bool:
    """Autocast warns of a device that is not there."""
    if device == "cpu":
        return True
    found = getattr(torch, device, None)
    return found is not None and bool(found.is_available())


def member(module: torch.nn.Module, name: str) -> object:
    """An attribute; not one that torch computes at each reading, which changes a module (``spectral_norm``) or draws
    random numbers."""
    return None if is_parametrized(module, name) else numpy_ops.member(module, name)


def numbers(tensor: torch.Tensor) -> torch.Tensor:
    """The stored elements."""
    return local(tensor).detach()


def wide(x: torch.Tensor) -> torch.Tensor:
    """By dtype."""
    return x if x.dtype is torch.float64 else x.float()


def on_host(x: torch.Tensor) -> bool:
    """By device."""
    return x.device.type == "cpu"


def is_floating(x: torch.Tensor) -> bool:
    """By dtype."""
    return x.is_floating_point()


def like(array: npt.NDArray[np.float64], x: torch.Tensor) -> torch.Tensor:
    """Copied without waiting."""
    return torch.from_numpy(array).to(x.dtype).to(x.device, non_blocking=True)


def zeros(shape: tuple[int, ...], x: torch.Tensor) -> torch.Tensor:
    """As :func:`like`."""
    return x.new_zeros(shape)


def positions(count: int, x: torch.Tensor) -> torch.Tensor:
    """Integers."""
    return torch.arange(count, device=x.device)


def turned(x: torch.Tensor) -> torch.Tensor:
    """A view."""
    return x.transpose(-1, -2)


def ordered(x: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
    """A view."""
    return x.permute(axes)


def largest(x: torch.Tensor) -> torch.Tensor:
    """``amax`` is NaN where one is."""
    return x.amax(-1, keepdim=True)


def magnitude(x: torch.Tensor) -> torch.Tensor:
    """Without sign."""
    return x.abs()


exp, log, root = torch.exp, torch.log, torch.sqrt


def where(condition: torch.Tensor, value: float, other: torch.Tensor) -> torch.Tensor:
    """Masked, so that the dtype stays."""
    return other.masked_fill(condition, value)


def counts(x: torch.Tensor, largest: int, above: float) -> torch.Tensor:
    """Added up in place: ``bincount`` waits for the device."""
    found = x.topk(largest, dim=1)
    return x.new_zeros(x.shape[1]).scatter_add_(0, found.indices.reshape(-1), (found.values > above).reshape(-1).to(x))


def column(scalars: Sequence[Any]) -> Any:
    """A tensor."""
    return torch.cat([scalar.reshape(-1).to(torch.float64) for scalar in scalars])[:, None]
