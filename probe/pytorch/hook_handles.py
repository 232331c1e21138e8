"""Hooks on tensors that are removed without a trace, and hooks on modules that copies do not inherit."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from probe.core.backend.patch import weakly
from probe.core.backend.protocols import Remove

Hook = Callable[..., None]


class Own(partial[Any]):
    """Hook that deep-copies and unpickles as a no-op, so that copies of a watched model are not watched. Local
    functions cannot be pickled, and copies would share them."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Return a callable that ignores its arguments, and can be unpickled without this package."""
        return getattr, (nullcontext(), "__exit__")

    @property
    def __name__(self) -> str:
        """Attribute that torch.jit.script reads to compile the hook."""
        raise AttributeError(
            "the model is watched by probe, whose hooks torch.jit.script cannot take: stop() the monitor"
        )


def on_own(tensor: torch.Tensor, hook: Hook) -> Remove:
    """Call ``hook`` with each gradient of ``tensor`` before accumulation."""
    return removing(tensor.register_hook(weakly(hook)), tensor, "_backward_hooks", hook)


def on_accumulated(tensor: torch.Tensor, hook: Hook) -> Remove:
    """Call ``hook`` with ``tensor`` when a gradient has been added to ``tensor.grad``."""
    handle = tensor.register_post_accumulate_grad_hook(weakly(hook))
    return removing(handle, tensor, "_post_accumulate_grad_hooks", hook)


def removing(handle: Any, tensor: torch.Tensor, attribute: str, hook: Hook) -> Remove:
    """Return a function that removes the hook and, if it was the only one, the dict that torch made for it in
    ``attribute``; ``hook`` stays alive until then."""
    kept = [hook]

    def remove() -> None:
        kept.clear()
        handle.remove()
        if not getattr(tensor, attribute):
            setattr(tensor, attribute, None)

    return remove
