"""Listeners to every update in the process, through torch's hooks for all optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import optimizer as base

from probe.core.backend.protocols import Remove


def on_every_step(began: Callable[[Any], None], ended: Callable[[Any], None]) -> Remove:
    """Call ``began`` before and ``ended`` after each ``step`` of every optimizer that inherits from torch's."""

    def before(optimizer: Any, *_: Any) -> None:
        began(optimizer)

    def after(optimizer: Any, *_: Any) -> None:
        ended(optimizer)

    handles = base.register_optimizer_step_pre_hook(before), base.register_optimizer_step_post_hook(after)

    def remove() -> None:
        for handle in handles:
            handle.remove()

    return remove
