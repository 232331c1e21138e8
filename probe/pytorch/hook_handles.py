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
        """A callable that ignores its arguments, and needs no package of ours where the file is read."""
        return getattr, (nullcontext(), "__exit__")

    @property
    def __name__(self) -> str:
        """The attribute that torch.jit.script reads to compile the hook."""
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
    """A function that calls ``hook`` as long as another reference to it exists. A tensor holds some of its hooks where
    the garbage collector does not look (torch 2.13): a hook that refers to the tensor would keep it for ever."""
    hook_ref = weakref.ref(hook)

    def call(*args: Any) -> None:
        if (hook := hook_ref()) is not None:
            hook(*args)

    return call


def removing(handle: Any, tensor: torch.Tensor, attribute: str, hook: Hook) -> Remove:
    """Removes the hook and, where it was the only one, the dict that torch made for it in ``attribute``; keeps ``hook``
    alive until then."""
    kept = [hook]

    def remove() -> None:
        kept.clear()
        handle.remove()
        if not getattr(tensor, attribute):
            setattr(tensor, attribute, None)

    return remove
