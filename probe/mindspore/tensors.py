"""Tensors of MindSpore, as core sees them: which can be read, and their moments.

Tensors in host memory are read in place: ``asnumpy`` returns a view in a few microseconds, while a single operator
takes longer than NumPy's reductions.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import mindspore
import numpy as np
import numpy.typing as npt

from probe.core.backend import fused_reduce, numpy_moments
from probe.core.backend.protocols import Adam
from probe.mindspore import device_moments
from probe.mindspore.device_moments import to_host  # noqa: F401 - a function of the protocol

Array = npt.NDArray[np.float64]

HELD_ELEMENTS = numpy_moments.SMALL
"""Elements up to which host tensors are copied and reduced together: the copy costs less than one reduction."""
IN_ONE_PASS = (("sum", "sumsq"), ("min", "max", "sum", "sumsq"))
"""Moments that are read at every step, of all gradients or of many parameters: by one call of the compiled pass."""
ROW = 511
"""Eight-byte words of one sum of :func:`checksum`. Odd, so that negating all elements of a row changes its sum."""


class Deferred(BaseException):
    """The failure of an earlier operator of training, which MindSpore raises at the next access to a tensor, perhaps
    only once.

    It is no ``Exception``: code that guards training against probe's own failures must not swallow it.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def is_tensor(value: object) -> bool:
    """Return whether ``value`` is a tensor whose elements exist: no sparse tensor, and no parameter that waits for its
    initialiser."""
    return isinstance(value, mindspore.Tensor) and not _ask(value, "has_init") and _ask(value, "dtype") is not None


def host_place(tensor: Any) -> None:
    """Return None: every tensor is read through :func:`moments`."""


def describe(tensor: Any) -> tuple[tuple[int, ...], object, None]:
    """Return shape and dtype; None for the coverage, since MindSpore holds tensors whole."""
    return tuple(_ask(tensor, "shape")), _ask(tensor, "dtype"), None


def numbers(tensor: Any) -> npt.NDArray[Any]:
    """Return the elements, without a copy if they are contiguous in host memory.

    Raises:
        Deferred: if the operator that computes the tensor, or an earlier one, has failed.
        TypeError: if NumPy has no such dtype, as for float8.
    """
    try:
        array: npt.NDArray[Any] = tensor.asnumpy()
    except Exception as error:
        raise Deferred(error) from error
    if array.dtype.names is not None or array.dtype.kind in "SUO":
        raise TypeError(f"elements of {_ask(tensor, 'dtype')} cannot be read in host memory: NumPy has no such numbers")
    return array


def _ask(tensor: Any, attribute: str) -> Any:
    """Return an attribute, None if this version lacks it. Its value, too, may need the result of operators."""
    try:
        return getattr(tensor, attribute, None)
    except Exception as error:
        raise Deferred(error) from error


def on_host(tensor: Any) -> bool:
    device = _ask(tensor, "device")
    return str(_default_device() if device is None else device).upper().startswith("CPU")


@functools.cache
def _default_device() -> str:
    """Return the device of tensors, for versions whose tensors have no ``device``."""
    return str(mindspore.get_context("device_target"))


def _held(tensor: Any) -> bool:
    return _ask(tensor, "size") <= HELD_ELEMENTS


def identity(tensor: Any) -> tuple[Hashable, Callable[[], object]]:
    """Return the identity of object and content for larger tensors in host memory, since ``tensor[0] = 1`` does not
    change a tensor's version. For other tensors, return a new identity at each call."""
    content = checksum(numbers(tensor)) if on_host(tensor) and not _held(tensor) else object()
    return (id(tensor), content), weakref.ref(tensor)


def checksum(array: npt.NDArray[Any]) -> int:
    """Return a hash of all bytes and the dtype, by exact integer sums of short rows: 20 microseconds a megabyte."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    rows = data.size // (8 * ROW)
    sums = np.add.reduce(data[: 8 * ROW * rows].view(np.int64).reshape(rows, ROW), axis=1)
    return hash((array.dtype.str, sums.tobytes(), data[8 * ROW * rows :].tobytes()))


def hold(tensor: Any) -> npt.NDArray[Any] | None:
    """Return a copy of a small tensor in host memory; None for other tensors."""
    return numbers(tensor).copy() if _held(tensor) and on_host(tensor) else None


def number(tensor: Any) -> float | None:
    """Return the element of a tensor of one element in host memory; None for other tensors."""
    return float(numbers(tensor).item()) if on_host(tensor) else None


def moments(tensors: Sequence[Any], columns: Sequence[str], eps: float, scale: Any = None) -> Any:
    """Return moments of non-empty tensors, or of arrays from :func:`hold`, as ``len(tensors) x len(columns)``: a
    float64 array for those in host memory (read at once, without a wait), a tensor for those on a device (no wait)."""
    if all(isinstance(tensor, np.ndarray) or on_host(tensor) for tensor in tensors):
        arrays = [tensor if isinstance(tensor, np.ndarray) else numbers(tensor) for tensor in tensors]
        if columns in IN_ONE_PASS and (rows := _in_one_pass(arrays, columns)) is not None:
            return rows
        return numpy_moments.moments(arrays, columns, eps if scale is None else eps * float(numbers(scale)))
    return device_moments.moments(tensors, columns, eps if scale is None else eps * scale)


def _in_one_pass(arrays: Sequence[npt.NDArray[Any]], columns: tuple[str, ...]) -> Array | None:
    """Return the moments by one call of the compiled pass; None if it cannot read all of them."""
    if fused_reduce.places(columns) is None:
        return None
    if any(array.dtype != np.float32 or not array.flags.c_contiguous for array in arrays):
        return None
    addresses, sizes = [array.ctypes.data for array in arrays], [array.size for array in arrays]
    read, valid = fused_reduce.moments(columns, addresses, sizes)
    rows = read()
    if beyond := [position for position, is_valid in enumerate(valid) if not is_valid]:
        rows[beyond] = numpy_moments.moments([arrays[position] for position in beyond], columns, 0.0)
    return rows


def agreement(one: Any, other: Any) -> Any:
    """Return the fraction of elements that have the same sign, 0-d, computed where the tensors are."""
    if on_host(one) and on_host(other):
        return mindspore.Tensor(numpy_moments.agreement(numbers(one), numbers(other)))
    return device_moments.agreement(one, other)


def adam(first: Any, second: Any, settings: Adam) -> tuple[Any, Any]:
    """Return update and ratio of two moments, computed where they are."""
    if not on_host(first):
        return device_moments.adam(first, second, settings)
    beta1, beta2, eps, steps = (_number(x) for x in (settings.beta1, settings.beta2, settings.eps, settings.steps))
    known = Adam(beta1, beta2, eps, steps, settings.early)
    update, ratio = numpy_moments.update_and_ratio(numbers(first), numbers(second), known)
    return mindspore.Tensor(update), mindspore.Tensor(ratio)


def _number(x: Any) -> float:
    return float(numbers(x).reshape(-1)[0]) if isinstance(x, mindspore.Tensor) else float(x)
