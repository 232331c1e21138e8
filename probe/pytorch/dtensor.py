"""Elements of distributed and expanded tensors that this process stores."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch

from probe.core.faults import Misfit
from probe.core.records import Coverage

PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
"""Types of tensors that hold their own elements."""
LOW = 1 << 32
"""Address below which a tensor is looked at again: it may be an offset into memory that was freed."""


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor that this process holds: its part of a distributed ``tensor``, the result of a collective,
    which is waited for, else ``tensor`` itself."""
    if type(tensor) in PLAIN:
        return tensor
    inner: Any = tensor
    inner = getattr(inner, "_local_tensor", inner)  # unlike to_local(), not recorded by autograd
    name = type(inner).__name__  # a class of the user's would see what is asked of it
    if name == "NestedTensor":
        return inner._values  # likewise, unlike values()
    return inner.wait() if name == "AsyncCollectiveTensor" else inner


def readable_places(
    tensors: Sequence[torch.Tensor], dtypes: Container[torch.dtype]
) -> tuple[list[torch.dtype], list[int], list[int]] | None:
    """Return dtypes, addresses and sizes of tensors whose elements lie side by side on one device, which need not be
    detached: no operator runs. Return None if one has another dtype, device or layout, a pending negation, a class of
    its own or no elements."""
    if not tensors or not PLAIN.issuperset(map(type, tensors)):
        return None
    number, kinds, addresses, sizes = tensors[0].get_device(), list[torch.dtype](), list[int](), list[int]()
    for tensor in tensors:  # each once: most of the time is that of its first look at a tensor
        if (dtype := tensor.dtype) not in dtypes or tensor.get_device() != number:
            return None
        if tensor.layout is not torch.strided or not tensor.is_contiguous() or tensor.is_neg():
            return None
        kinds.append(dtype)
        sizes.append(tensor.numel())
        addresses.append(tensor.data_ptr())
    if 0 in sizes or (min(addresses) < LOW and not all(map(is_stored, tensors))):
        return None
    return kinds, addresses, sizes


def is_stored(tensor: torch.Tensor) -> bool:
    """Return False for a strided tensor whose memory was freed, or whose class keeps the elements in other tensors
    (quantized weights, states of 8-bit optimizers): it has none of its own."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return True
    return bool(tensor.data_ptr() != tensor.storage_offset() * tensor.itemsize)


def stored(tensor: torch.Tensor) -> torch.Tensor:
    """Return ``tensor``, or a copy by its class if that keeps the elements in other tensors.

    Raises:
        Misfit: for memory that was freed.
    """
    if is_stored(tensor):
        return tensor
    if type(tensor) in PLAIN:
        raise Misfit("expected a tensor with values, got one whose memory was freed; free it after the update")
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def coverage(tensor: torch.Tensor) -> Coverage | None:
    """Return the coverage of a distributed tensor on this process; None if the process holds all of it."""
    if type(tensor) in PLAIN:
        return None
    spec: Any = getattr(tensor, "_spec", None)
    if spec is None:
        return None
    coverages, layout = _known.setdefault(spec.mesh, {}), (tuple(spec.placements), tuple(tensor.shape))
    if layout not in coverages:
        coverages[layout] = _coverage(spec.mesh, *layout)
    return coverages[layout]


_known: WeakKeyDictionary[Any, dict[object, Coverage | None]] = WeakKeyDictionary()
"""Coverages by mesh, which is not kept alive."""


def _coverage(mesh: Any, placements: tuple[Any, ...], shape: tuple[int, ...]) -> Coverage | None:
    """Return the coverage by the mesh dimensions over which the tensor is not replicated."""
    at = mesh.get_coordinate()
    spread = [i for i, placement in enumerate(placements) if not placement.is_replicate() and mesh.size(i) > 1]
    if at is None or not spread:
        return None
    ranks = mesh.mesh[tuple(slice(None) if i in spread else at[i] for i in range(mesh.ndim))]
    where = ", ".join(f"{_dimension(placements[i])}{at[i]}/{mesh.size(i)}" for i in spread)
    term = any(placements[i].is_partial() for i in spread)
    return Coverage(shape, where, tuple(sorted(ranks.flatten().tolist())), term)


def _dimension(placement: Any) -> str:
    """Return ``dim 0: `` for a tensor that is split along a dimension, else an empty string."""
    dim = getattr(placement, "dim", None)
    return "" if dim is None else f"dim {dim}: "


def add(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the sum, without communication and unrecorded by autograd.

    Raises:
        ValueError: if the sum of tensors that are spread over ranks in these ways would need a collective.
    """
    with torch.no_grad():
        if not hasattr(one, "_spec") and not hasattr(other, "_spec"):
            return local(one) + local(other)
        where = _common(one, other)
        whole: Any = one
        total = _as_terms(one, where) + _as_terms(other, where)
        return whole.from_local(
            total, whole.device_mesh, where, run_check=False, shape=whole.shape, stride=whole.stride()
        )


def _common(one: Any, other: Any) -> tuple[Any, ...]:
    """Return the placements of the sum. A tensor that all ranks hold whole can be one rank's term."""
    specs: list[Any] = [getattr(tensor, "_spec", None) for tensor in (one, other)]
    if None not in specs and specs[0].mesh == specs[1].mesh:
        pairs = list(zip(specs[0].placements, specs[1].placements, strict=True))
        if all(a == b or (a.is_replicate() and _is_term(b)) or (b.is_replicate() and _is_term(a)) for a, b in pairs):
            return tuple(b if a.is_replicate() else a for a, b in pairs)
    places = [None if spec is None else tuple(spec.placements) for spec in specs]
    raise ValueError(f"the sum of gradients that are spread as {places[0]} and {places[1]} would need a collective")


def _is_term(placement: Any) -> bool:
    return bool(placement.is_partial()) and placement.reduce_op == "sum"


def _as_terms(tensor: Any, where: tuple[Any, ...]) -> torch.Tensor:
    """Return the part of ``tensor`` that this process holds if it is spread as ``where``: a tensor that all ranks hold
    becomes the term of the first rank."""
    at = tensor.device_mesh.get_coordinate()
    changed = [i for i, (now, then) in enumerate(zip(tensor.placements, where, strict=True)) if now != then]
    part = local(tensor)
    return torch.zeros_like(part) if any(at[i] for i in changed) else part


def distinct(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return a view of an expanded tensor that holds each stored element once, and how often each occurs.

    The gradient of ``y.sum()`` is one element, expanded to the shape of ``y``: reducing the expanded tensor takes as
    long as reducing a stored one, and a copy of it may exceed the memory.
    """
    if tensor.layout is not torch.strided or 0 not in tensor.stride():
        return tensor, 1
    once = tensor[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())]
    return once, tensor.numel() // once.numel()
