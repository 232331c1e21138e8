"""Hooks on tensors that leave nothing behind, and hooks on modules that stay with them."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from probe.core.framework import Remove


class Own(partial[Any]):
    """A function as the hook of this very module: a copy of the module, and what a file of it is read into, have a hook
    that does nothing in its place. Local functions cannot be pickled, and would be shared with copies."""

    def __reduce__(self) -> tuple[Any, ...]:
        """What takes any arguments and gives None, and needs no package of ours where the file is read."""
        return getattr, (nullcontext(), "__exit__")

    @property
    def __name__(self) -> str:
        """What torch.jit.script asks for, to compile the hook."""
        raise AttributeError(
            "the model is watched by probe, whose hooks torch.jit.script cannot take: stop() the monitor"
        )


def removing(handle: Any, tensor: torch.Tensor, attribute: str) -> Remove:
    """Takes the hook away and, where it was the only one, the dict that torch made for it in ``attribute``."""

    def remove() -> None:
        handle.remove()
        if not getattr(tensor, attribute):
            setattr(tensor, attribute, None)

    return remove
