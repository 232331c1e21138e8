"""Tensors of torch for the contract of moments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from probe.core.histogram import HISTOGRAM
from probe.pytorch import device_moments, tensors

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def tensor(values: Any, dtype: str) -> Any:
    """``values`` through torch's own conversion."""
    return torch.from_numpy(np.array(values)).to(getattr(torch, dtype))


def elements(tensor: Any) -> Any:
    """Complex numbers and integers as they are, others in float64; of every layout."""
    dense = (tensor if tensor.layout is torch.strided else tensor.to_dense()).resolve_conj().resolve_neg()
    return (dense.to(torch.float64) if dense.is_floating_point() else dense).numpy()


def host(given: Sequence[Any], columns: Sequence[str], eps: float) -> Any:
    """The reduction of tensors in host memory."""
    return tensors.to_host([tensors.moments(given, columns, eps)])()


def device(given: Sequence[Any], columns: Sequence[str], eps: float) -> Any:
    """That of tensors on a device, by torch's own operators, which can be run anywhere."""
    return tensors.to_host([device_moments.moments(given, columns, eps)])()


def kernels(given: Sequence[Any], columns: Sequence[str], eps: float) -> Any:
    """That of tensors on a CUDA device, by the kernels: on such a device, or by Triton's interpreter."""
    from probe.pytorch import triton_moments

    there = [tensor.to(DEVICE) for tensor in given]
    limit = torch.full((), eps, dtype=torch.float64, device=DEVICE)
    rows = None if HISTOGRAM in columns else triton_moments.in_place(there, tuple(columns), limit)
    return tensors.to_host([device_moments.by_kernels(triton_moments, there, columns, eps) if rows is None else rows])()
