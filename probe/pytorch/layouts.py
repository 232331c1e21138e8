"""Tensors as the elements that they really store."""

from __future__ import annotations

import torch


def distinct(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """A view of an expanded tensor that holds each stored element once, and how often each occurs.

    The gradient of ``y.sum()`` is one element, expanded to the shape of ``y``: to reduce it as it looks takes as long
    as if it were all there, and to copy it may take more memory than there is.
    """
    if tensor.layout is not torch.strided or 0 not in tensor.stride():
        return tensor, 1
    once = tensor[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())]
    return once, tensor.numel() // once.numel()
