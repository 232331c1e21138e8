"""Modes and transformations of torch from which reading a tensor is kept apart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch._C import _functorch
from torch.utils._python_dispatch import _disable_current_modes

_NOTHING = nullcontext()
_transformation = _functorch.peek_interpreter_stack


def unseen() -> AbstractContextManager[object]:
    """Return a context that hides operators from the user's dispatch modes (selective checkpointing, FLOP counters) and
    from transformations of ``torch.func``, which would return tensors without numbers."""
    if _transformation() is not None:
        return _untransformed()
    return _disable_current_modes() if torch._C._len_torch_dispatch_stack() else _NOTHING


@contextmanager
def _untransformed() -> Iterator[None]:
    layers = []
    try:
        while _transformation() is not None:
            layers.append(_functorch.pop_dynamic_layer_stack())
        with _disable_current_modes():
            yield
    finally:
        while layers:
            _functorch.push_dynamic_layer_stack(layers.pop())
