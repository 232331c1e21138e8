"""Tensors that nodes of autograd have saved for the backward, read without running anything of the user's.

Hooks on saved tensors (``torch.autograd.graph.saved_tensors_hooks``) run when a tensor is unpacked: activation
checkpointing computes its segment again, offloading copies from elsewhere. Such tensors are not unpacked.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch
from torch.autograd.function import FunctionCtx
from torch.autograd.graph import saved_tensors_hooks

from probe.pytorch.dtensor import PLAIN
from probe.pytorch.modes import unseen

RAW, SAVED = "_raw_saved_", "_saved_"
_FUNCTION: Any = torch._C._FunctionBase
_POINTER = ctypes.sizeof(ctypes.c_void_p)
_HEAD = object.__basicsize__


def saved(node: Any) -> Iterator[tuple[str, torch.Tensor | None]]:
    """Yield the name and each tensor that ``node`` has saved; None for one that cannot be read: it has hooks, was
    changed in place since, or is freed."""
    if isinstance(node, FunctionCtx):  # a user's attributes may have any name
        yield from (("inner", tensor) for tensor in _unpacked(_FUNCTION, node, "tensors", "saved_tensors"))
        return
    kind: Any = type(node)
    for name in _attributes(kind):
        yield from ((name, tensor) for tensor in _unpacked(kind, node, name, SAVED + name))


def _unpacked(kind: Any, node: Any, raw: str, attribute: str) -> Iterator[torch.Tensor | None]:
    """Yield what is saved under an attribute: all of it, or None for each if one of them must not be unpacked."""
    try:
        packed = getattr(kind, RAW + raw).__get__(node) or ()
        packed = packed if isinstance(packed, tuple | list) else (packed,)
        if unhooked is None or not all(map(unhooked, packed)):
            yield from (None for item in packed if not _absent(item))
            return
        tensors = getattr(kind, attribute).__get__(node)
    except RuntimeError:  # another version, or freed
        yield None
        return
    tensors = tensors if isinstance(tensors, tuple | list) else (tensors,)
    yield from (tensor for tensor in tensors if tensor is not None)


@functools.cache
def _attributes(kind: type) -> tuple[str, ...]:
    """Return the names under which nodes of a class of torch save tensors."""
    return tuple(name[len(RAW) :] for name in dir(kind) if name.startswith(RAW))


def readable(tensor: torch.Tensor) -> bool:
    """Return whether the numbers of ``tensor`` lie in the memory of this process: those of a parameter that is
    gathered only for its forward have been freed behind it."""
    if type(tensor) not in PLAIN or not tensor.is_cpu or tensor.layout is not torch.strided:
        return False
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor) or tensor._is_zerotensor():
        return False
    last = tensor.storage_offset() + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size() <= tensor.untyped_storage().nbytes()


def _by_property(raw: Any) -> bool:
    """Return whether a saved tensor has no hooks (torch from 2.13)."""
    try:
        return raw.unpack_hook is None
    except RuntimeError:  # a hook of C++, or one whose first half has raised
        return False


def _absent(raw: Any) -> bool:
    """Return whether an argument was None, as far as torch shows it (from 2.13)."""
    return getattr(raw, "unpack_hook", raw) is None


def _word(raw: Any) -> int:
    """Return the address of the tensor in a saved one: the first field of torch's object, to which the first field of
    Python's leads."""
    place = ctypes.c_void_p.from_address(id(raw) + _HEAD).value
    assert place is not None
    return ctypes.c_void_p.from_address(place).value or 0


def _by_address() -> Callable[[Any], bool] | None:
    """Return a function that returns whether a saved tensor has no hooks, for torch 2.4 to 2.12, which have no
    property: a saved tensor with hooks holds no tensor itself.

    Return None if an example of each kind does not look as expected.
    """
    with torch._C.DisableTorchFunction(), unseen(), torch.inference_mode(False), torch.enable_grad():
        leaf = torch.ones(1, requires_grad=True, device="cpu")
        plain, constant = leaf * leaf, leaf * 2.0
        with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
            hooked = leaf * leaf
    nodes: list[Any] = [plain.grad_fn, constant.grad_fn, hooked.grad_fn]
    with suppress(AttributeError, AssertionError):
        tensor, nothing, packed = (_word(node._raw_saved_self) for node in nodes)
        if tensor == leaf._cdata and nothing == packed != tensor:
            return lambda raw: type(raw) is torch._C._autograd.SavedTensor and _word(raw) != nothing
    return None


unhooked: Callable[[Any], bool] | None = (
    _by_property if hasattr(torch._C._autograd.SavedTensor, "unpack_hook") else _by_address()
)
"""Function that returns whether a saved tensor has no hooks, without calling any; None if that cannot be known."""
