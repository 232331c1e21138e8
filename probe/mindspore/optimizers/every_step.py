"""Every update in the process: MindSpore's optimizers are cells, whose classes are patched while anything listens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from mindspore import nn
from mindspore.experimental import optim

from probe.core.backend.patch import Shared, Undo, replace
from probe.core.backend.protocols import Remove
from probe.mindspore.cell_hooks import surfacing

KINDS: tuple[type, ...] = (nn.Optimizer, optim.Optimizer)
"""Base classes of all MindSpore optimizers; those of ``mint.optim`` inherit from the second."""
Edges = tuple[Callable[[Any], None], Callable[[Any], None]]


def on_every_step(began: Callable[[Any], None], ended: Callable[[Any], None]) -> Remove:
    """Call ``began`` and ``ended`` around each call of every optimizer of MindSpore's own."""
    return _listening.listen((began, ended))


def _install() -> Iterator[Undo]:
    yield from map(_listen_to, KINDS)


_listening: Shared[Edges] = Shared(_install)


def _listen_to(kind: Any) -> Remove:
    inherited = kind.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        for began, _ in _listening:
            surfacing(began)(self)
        result = inherited(self, *args, **kwargs)
        for _, ended in _listening:
            surfacing(ended)(self)
        return result

    return replace(kind, "__call__", call)
