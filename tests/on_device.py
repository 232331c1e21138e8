"""Plugin that runs the tests of PyTorch on a CUDA device: ``pytest -p tests.on_device tests/pytorch``.

Tensors and generators are made on the device unless a test names another, scalers and automatic mixed precision for the
host are those for the device, and a test that reads numbers of a tensor as an array has them copied to the host. The
package itself is left as it is.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

DEVICE = "cuda"
_Generator, _numpy, _array = torch.Generator, torch.Tensor.numpy, torch.Tensor.__array__
_scaler, _autocast = torch.amp.GradScaler.__init__, torch.autocast.__init__


class _OfGenerators(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _Generator)


class Generator(metaclass=_OfGenerators):
    """Generator of the device, unless another is named."""

    def __new__(cls, device: Any = DEVICE) -> Any:
        """Make one of torch's."""
        return _Generator(device)


def _reads_a_test() -> bool:
    return str(sys._getframe(2).f_globals.get("__name__")).startswith("tests.")


def numpy(tensor: Any, **options: Any) -> Any:
    """Return the numbers of ``tensor``, copied to the host for a test."""
    return _numpy(tensor.detach().cpu() if _reads_a_test() else tensor, **options)


def array(tensor: Any, *dtype: Any, **options: Any) -> Any:
    """Return an array of ``tensor``, copied to the host for a test."""
    return _array(tensor.detach().cpu() if _reads_a_test() else tensor, *dtype, **options)


def _scaler_of_device(scaler: Any, device: str = DEVICE, *values: Any, **options: Any) -> None:
    _scaler(scaler, DEVICE if device == "cpu" else device, *values, **options)


def _autocast_of_device(autocast: Any, device_type: str, *values: Any, **options: Any) -> None:
    _autocast(autocast, DEVICE if device_type == "cpu" else device_type, *values, **options)


torch.set_default_device(DEVICE)
torch.Generator = Generator  # type: ignore[assignment,misc]
torch.Tensor.numpy = numpy  # type: ignore[assignment,method-assign]
torch.Tensor.__array__ = array  # type: ignore[assignment,method-assign]
torch.amp.GradScaler.__init__ = _scaler_of_device  # type: ignore[assignment,method-assign]
torch.autocast.__init__ = _autocast_of_device  # type: ignore[assignment,method-assign]
