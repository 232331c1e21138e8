"""Hooks on tensors that leave nothing behind, and hooks on modules that stay with them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from probe.core.backend.protocols import Remove

Hook = Callable[..., None]


class Own(partial[Any]):
    """A hook that deep-copies and unpickles as a no-op, so that copies of a watched model are not watched. Local
    functions cannot be pickled, and would be shared with copies."""

    def __reduce__(self) -> tuple[Any, ...]:
        """What takes any arguments and gives None, and needs no package of ours where the file is read."""
        return getattr, (nullcontext(), "__exit__")

    @property
    def __name__(self) -> str:
        """What torch.jit.script asks for, to compile the hook."""
        raise AttributeError(
            "the model is watched by probe, whose hooks torch.jit.script cannot take: stop() the monitor"
        )


def on_own(tensor: torch.Tensor, hook: Hook) -> Remove:
    """Calls ``hook`` with each gradient of ``tensor`` by itself."""
    return removing(tensor.register_hook(weakly(hook)), tensor, "_backward_hooks", hook)


def on_accumulated(tensor: torch.Tensor, hook: Hook) -> Remove:
    """Calls ``hook`` with ``tensor`` when a gradient has been added to its own."""
    handle = tensor.register_post_accumulate_grad_hook(weakly(hook))
    return removing(handle, tensor, "_post_accumulate_grad_hooks", hook)


def weakly(hook: Hook) -> Hook:
    """A function that calls ``hook`` while somebody else keeps it: a tensor holds some of its hooks where no garbage
    collection looks (torch 2.13), so that one which knows the tensor would keep it for ever."""
    known = weakref.ref(hook)

    def call(*args: Any) -> None:
        if (found := known()) is not None:
            found(*args)

    return call


def removing(handle: Any, tensor: torch.Tensor, attribute: str, hook: Hook) -> Remove:
    """Takes the hook away and, where it was the only one, the dict that torch made for it in ``attribute``; keeps
    ``hook`` until then."""
    kept = [hook]

    def remove() -> None:
        kept.clear()
        handle.remove()
        if not getattr(tensor, attribute):
            setattr(tensor, attribute, None)

    return remove
