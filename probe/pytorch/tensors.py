"""Tensors of torch as seen by core: their elements, coverage and moments."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as registry

from probe.core.backend import pytree
from probe.core.backend.protocols import Adam
from probe.core.faults import Misfit
from probe.core.records import Coverage
from probe.pytorch import device_moments, host_moments
from probe.pytorch.dtensor import PLAIN, coverage, is_stored, local
from probe.pytorch.host_copies import to_host  # noqa: F401 - like the next one a function of the protocol
from probe.pytorch.host_moments import host_place  # noqa: F401
from probe.pytorch.modes import unseen

Array = npt.NDArray[np.float64]

HELD_ELEMENTS = 4096
"""Elements up to which host tensors are copied and reduced together: the copy costs less than one reduction."""


def unpacking(kind: type) -> pytree.Unpack | None:
    """Return the function by which torch itself reads containers of a class; None if it is not registered."""
    if kind is torch.Size:  # of numbers
        return lambda _: ()
    node = registry.SUPPORTED_NODES.get(kind)
    return None if node is None else lambda value: node.flatten_fn(value)[0]


pytree.consult(unpacking)


def is_tensor(value: Any) -> bool:
    """Return whether ``value`` is a tensor whose elements exist (a meta tensor has none, nor has a fake one)."""
    if type(value) in PLAIN:
        return bool(value.device.type != "meta")
    if not issubclass(type(value), torch.Tensor) or issubclass(type(value), FakeTensor):  # isinstance asks the value
        return False
    with torch._C.DisableTorchFunction():
        return bool(value.device.type != "meta")


def describe(tensor: torch.Tensor) -> tuple[tuple[int, ...], object, Coverage | None]:
    """Return the shape of the part that this process holds, the dtype and the coverage."""
    return tuple(local(tensor).shape), tensor.dtype, coverage(tensor)


def identity(tensor: torch.Tensor) -> tuple[Hashable, Callable[[], object]]:
    """Return object and version; every in-place change that autograd sees makes another version."""
    tensor = local(tensor)
    try:
        version: object = tensor._version
    except RuntimeError:  # an inference tensor counts no writes
        version = object()
    return (id(tensor), version), weakref.ref(tensor)


def hold(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a copy of a small tensor in host memory; None for any other."""
    tensor = local(tensor)
    if tensor.device.type != "cpu" or tensor.numel() > HELD_ELEMENTS or tensor.layout is not torch.strided:
        return None
    if not is_stored(tensor):
        return None
    with unseen():
        return tensor.detach().clone() if tensor.requires_grad else tensor.clone()


def number(tensor: torch.Tensor) -> float | None:
    """Return the element of a tensor of one element in host memory; None for any other."""
    with torch._C.DisableTorchFunction(), unseen():
        tensor = local(tensor)
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
            return None
        return float(tensor.item())


def moments(tensors: Sequence[torch.Tensor], columns: Sequence[str], eps: float, scale: Any = None) -> Any:
    """Return moments of non-empty tensors as ``len(tensors) x len(columns)`` float64: rows in host memory for host
    tensors, a tensor on the device for others, without waiting for the device."""
    columns = tuple(columns)
    is_known = scale is None or "below" not in columns  # eps, in the tensors' unit
    if is_known and (rows := host_moments.in_one_pass(tensors, columns, eps)) is not None:
        return rows
    parts = [*map(local, tensors)]
    with torch._C.DisableTorchFunction(), unseen():
        if is_known and (block := device_moments.in_place(parts, columns, eps)) is not None:
            return block
        detached = [tensor.detach() for tensor in parts]
        if all(tensor.device.type == "cpu" for tensor in detached):
            return host_moments.moments(detached, columns, eps if scale is None else eps * float(scale))
        if any(tensor.is_meta for tensor in detached):
            raise Misfit("expected a tensor with values, got one of the meta device; give it values, by to_empty() say")
        return device_moments.moments(detached, columns, eps if scale is None else eps * scale)


def agreement(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the fraction of equal signs, 0-d float64 on the tensors' device, from counts in integers."""
    one, other = local(one), local(other)
    if one.shape != other.shape:
        raise ValueError(f"expected two tensors of one shape, got {list(one.shape)} and {list(other.shape)}")
    with unseen(), torch.no_grad():
        a, b, elements = one.detach(), other.detach(), one.numel()
        if a.is_sparse:  # the rest of it is 0
            a, b = (a := a.coalesce()).values(), b[tuple(a.indices())]
        if a.is_complex():
            a, b, elements = torch.view_as_real(a), torch.view_as_real(b), 2 * elements
        signs = [(x > 0).to(torch.int8).sub_((x < 0).to(torch.int8)) for x in (a, b)]
        return signs[0].mul_(signs[1]).sum(dtype=torch.int64).to(torch.float64).div_(2 * elements).add_(0.5)


def adam(first: torch.Tensor, second: torch.Tensor, settings: Adam) -> tuple[torch.Tensor, torch.Tensor]:
    """Return update and ratio of two moments on their device; the number of steps may be on a device, too."""
    with unseen(), torch.no_grad():
        steps = settings.steps.detach().double() if isinstance(settings.steps, torch.Tensor) else settings.steps
        m, v = local(first).detach(), local(second).detach()
        if is_complex := m.is_complex():  # the optimizer treats it as pairs of real numbers
            m, v = torch.view_as_real(m), torch.view_as_real(v)
        m, v = (x if x.dtype is torch.float64 else x.float() for x in (m, v))
        rest = 1 - settings.beta2**steps
        mean, root = m / (1 - settings.beta1**steps), (v / rest).sqrt_()
        eps = settings.eps / rest**0.5 if settings.early else settings.eps
        update, ratio = mean / (root + eps), (mean / root).masked_fill_(m == 0, 0.0)
        return (torch.view_as_complex(update), torch.view_as_complex(ratio)) if is_complex else (update, ratio)


def numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Return the stored elements."""
    return local(tensor).detach()
