"""Tensors as the elements that this process really stores."""

from __future__ import annotations

import functools
from typing import Any

import torch

from probe.core.records import Coverage

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What this process holds of ``tensor``: its part of a distributed one, the result of a collective once that is
    done, else the tensor itself."""
    if type(tensor) in _PLAIN:
        return tensor
    held: Any = vars(tensor).get("_local_tensor", tensor)  # unlike to_local(), nothing that autograd records
    return held.wait() if type(held).__name__ == "AsyncCollectiveTensor" else held


def coverage(tensor: torch.Tensor) -> Coverage | None:
    """What of a distributed tensor this process holds; None if that is all of it."""
    if type(tensor) in _PLAIN:
        return None
    spec = getattr(tensor, "_spec", None)
    return None if spec is None else _coverage(spec.mesh, tuple(spec.placements), tuple(tensor.shape))


@functools.lru_cache(maxsize=1024)
def _coverage(mesh: Any, placements: tuple[Any, ...], shape: tuple[int, ...]) -> Coverage | None:
    """By the mesh dimensions over which the tensor is not replicated."""
    at = mesh.get_coordinate()
    spread = [i for i, placement in enumerate(placements) if not placement.is_replicate() and mesh.size(i) > 1]
    if at is None or not spread:
        return None
    ranks = mesh.mesh[tuple(slice(None) if i in spread else at[i] for i in range(mesh.ndim))]
    where = ", ".join(f"{_dimension(placements[i])}{at[i]}/{mesh.size(i)}" for i in spread)
    term = any(placements[i].is_partial() for i in spread)
    return Coverage(shape, where, tuple(sorted(ranks.flatten().tolist())), term)


def _dimension(placement: Any) -> str:
    """``dim 0: `` of what is split along a dimension."""
    dim = getattr(placement, "dim", None)
    return "" if dim is None else f"dim {dim}: "


def distinct(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """A view of an expanded tensor that holds each stored element once, and how often each occurs.

    The gradient of ``y.sum()`` is one element, expanded to the shape of ``y``: to reduce it as it looks takes as long
    as if it were all there, and to copy it may take more memory than there is.
    """
    if tensor.layout is not torch.strided or 0 not in tensor.stride():
        return tensor, 1
    once = tensor[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())]
    return once, tensor.numel() // once.numel()
