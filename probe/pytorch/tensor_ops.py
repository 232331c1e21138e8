"""Array operations of core on torch tensors, on any device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.utils.parametrize import is_parametrized

from probe.core.backend import numpy_ops
from probe.pytorch.modes import unseen

ON_HOST, ON_DEVICE = 1 << 20, 1 << 24
"""Elements of a block: the number that the cache of a processor core holds, and the number that keeps a device busy."""


def block(x: torch.Tensor) -> int:
    """Return the elements of a block on the device of ``x``."""
    return ON_HOST if x.device.type == "cpu" else ON_DEVICE


@contextmanager
def quiet() -> Iterator[None]:
    """Disable gradients, dispatch modes and autocast, which would compute products in half precision."""
    with ExitStack() as inside:
        inside.enter_context(torch.no_grad())
        inside.enter_context(unseen())
        for device in filter(_is_available, ("cpu", "cuda", "npu")):
            inside.enter_context(torch.autocast(device, enabled=False))
        yield


def _is_available(device: str) -> bool:
    """Return whether ``device`` is available; if not, autocast would warn."""
    if device == "cpu":
        return True
    module = getattr(torch, device, None)
    return module is not None and bool(module.is_available())


def member(module: torch.nn.Module, name: str) -> object:
    """Return an attribute; None for one that torch computes at each access, which changes a module (``spectral_norm``)
    or draws random numbers."""
    return None if is_parametrized(module, name) else numpy_ops.member(module, name)


def wide(x: torch.Tensor) -> torch.Tensor:
    """Return float64 numbers unchanged, others as float32."""
    return x if x.dtype is torch.float64 else x.float()


def on_host(x: torch.Tensor) -> bool:
    """Return whether ``x`` is in host memory."""
    return x.device.type == "cpu"


def like(array: npt.NDArray[np.float64], x: torch.Tensor) -> torch.Tensor:
    """Copy ``array`` to the device of ``x`` without waiting."""
    return torch.from_numpy(array).to(x.dtype).to(x.device, non_blocking=True)


def zeros(shape: tuple[int, ...], x: torch.Tensor) -> torch.Tensor:
    """Return zeros on the device of ``x``, with its dtype."""
    return x.new_zeros(shape)


def positions(count: int, x: torch.Tensor) -> torch.Tensor:
    """Return integers on the device of ``x``."""
    return torch.arange(count, device=x.device)


def turned(x: torch.Tensor) -> torch.Tensor:
    """Return a view with the last two dimensions swapped."""
    return x.transpose(-1, -2)


def largest(x: torch.Tensor) -> torch.Tensor:
    """Return the maximum of the last dimension; NaN if one element is NaN."""
    return x.amax(-1, keepdim=True)


exp, log, root, magnitude, ordered = torch.exp, torch.log, torch.sqrt, torch.abs, torch.permute
is_floating = torch.is_floating_point


def where(condition: torch.Tensor, value: float, other: torch.Tensor) -> torch.Tensor:
    """Return ``value`` where ``condition`` is true, else ``other``, whose dtype is kept."""
    return other.masked_fill(condition, value)


def counts(x: torch.Tensor, largest: int, above: float) -> torch.Tensor:
    """Count by addition in place: ``bincount`` waits for the device."""
    largest_values = x.topk(largest, dim=1)
    return x.new_zeros(x.shape[1]).scatter_add_(
        0, largest_values.indices.reshape(-1), (largest_values.values > above).reshape(-1).to(x)
    )


def column(scalars: Sequence[Any]) -> Any:
    """Return a float64 tensor with one number a row."""
    return torch.cat([scalar.reshape(-1).to(torch.float64) for scalar in scalars])[:, None]
