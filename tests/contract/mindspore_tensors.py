"""Tensors of MindSpore for the contract of moments."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

os.environ.setdefault("GLOG_v", "4")  # MindSpore logs its warnings to the terminal

import mindspore
import numpy as np

from probe.mindspore import device_moments, tensors


def tensor(values: Any, dtype: str) -> Any:
    """``values`` in ``dtype``; NumPy, which rounds as MindSpore does, knows them all but bfloat16."""
    if dtype == "bfloat16":
        return mindspore.Tensor(values.astype(np.float32)).astype(mindspore.bfloat16)
    return mindspore.Tensor(values.astype(dtype))


def elements(tensor: Any) -> Any:
    """Complex numbers and integers as they are, others in float64."""
    wide = tensor.astype(mindspore.float32) if tensor.dtype == mindspore.bfloat16 else tensor
    array = wide.asnumpy()
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def host(given: Sequence[Any], columns: Sequence[str], eps: float) -> Any:
    """The reduction of tensors in host memory."""
    return tensors.to_host([tensors.moments(given, columns, eps)])()


def device(given: Sequence[Any], columns: Sequence[str], eps: float) -> Any:
    """That of tensors on a device, whose operators the CPU has too."""
    return tensors.to_host([device_moments.moments(given, columns, eps)])()
