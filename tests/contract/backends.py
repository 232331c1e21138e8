"""All reductions that promise the same moments: NumPy's, torch's and MindSpore's, on the host and as on a device.

Each framework has a module of plain functions beside this one: ``tensor``, ``elements``, ``host`` and ``device``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from probe.core.backend import fused_reduce
from tests.required import require, require_compiled

Elements = npt.NDArray[Any]
Tensor = Any

INTEGERS = ("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8")
NUMPY = ("float64", "float32", "float16", "longdouble", ">f4", ">f8", *INTEGERS, "bool", "complex64", "complex128")
TORCH = (
    *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
    *("int64", "int32", "int8", "uint8", "bool", "complex64", "complex128"),
)
MINDSPORE = ("float64", "float32", "float16", "bfloat16", *INTEGERS, "bool", "complex64")


class Backend(NamedTuple):
    """A reduction, and what it is made for."""

    name: str
    package: str
    module: str
    dtypes: tuple[str, ...]
    reduction: str = "host"
    compiled: bool = False
    """Whether the compiled pass takes part; without it, it is switched off."""
    resolution: float = 0.0
    """Relative error of extremes, and of a std relative to the RMS: of a reduction that computes in float32 alone."""

    def prepare(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Skip or fail where the package or the compiled pass is not at hand; switch the compiled pass off."""
        require(self.package)
        if not self.compiled:
            monkeypatch.setattr(fused_reduce, "available", False)
        else:
            require_compiled()

    @property
    def framework(self) -> ModuleType:
        """The functions that make and read tensors."""
        return import_module(self.module)

    def tensor(self, values: Elements, dtype: str) -> Tensor:
        """``values`` in ``dtype``."""
        return self.framework.tensor(values, dtype)

    def elements(self, tensor: Tensor) -> Elements:
        """The elements as they are, flat, in NumPy's widest dtype of their kind."""
        flat: Elements = self.framework.elements(tensor).reshape(-1)
        return flat

    def moments(self, tensors: Sequence[Tensor], columns: Iterable[str], eps: float) -> npt.NDArray[np.float64]:
        """A row of moments for each tensor."""
        rows: npt.NDArray[np.float64] = getattr(self.framework, self.reduction)(tensors, tuple(columns), eps)
        return rows


_TORCH = ("torch", "tests.contract.torch_tensors", TORCH)
_MINDSPORE = ("mindspore", "tests.contract.mindspore_tensors", MINDSPORE)
BACKENDS = (
    Backend("numpy", "numpy", "tests.contract.numpy_arrays", NUMPY),
    Backend("numpy-compiled", "numpy", "tests.contract.numpy_arrays", NUMPY, compiled=True),
    Backend("torch", *_TORCH),
    Backend("torch-compiled", *_TORCH, compiled=True),
    Backend("torch-device", *_TORCH, reduction="device"),
    Backend("mindspore", *_MINDSPORE, compiled=True),
    Backend("mindspore-device", *_MINDSPORE, reduction="device", resolution=2e-7),
)
if os.environ.get("CONTRACT_OF") == "kernels":  # a process of its own: Triton's interpreter is chosen once
    BACKENDS = (Backend("torch-kernels", *_TORCH, reduction="kernels"),)
