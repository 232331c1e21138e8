"""Listening to ``torch.distributed``: where its functions hand over to a process group.

Every function of ``torch.distributed`` ends in a method of ``ProcessGroup``, and every handle is a ``Work``: these two
classes are listened to, not the functions, so that it does not matter who has kept a reference to which function, and
when; and functions stay the very objects that ``torch.distributed`` and ``torch.compile`` compare. Functional
collectives go past these classes: their operators are listened to as well.
"""

from __future__ import annotations

from contextlib import ExitStack

import torch
import torch.distributed as dist

from probe.core.backend.patch import replace
from probe.core.backend.protocols import CollectiveListener, Remove
from probe.pytorch.collectives import functional, process_group
from probe.pytorch.collectives.dispatch import listeners

_placed: list[ExitStack] = []
"""What takes the listening off torch, while anybody listens."""


def listen(listener: CollectiveListener) -> Remove:
    """Tells ``listener`` of every call through Python."""
    if not dist.is_available():
        return lambda: None
    if not _placed:
        _placed.append(_place())
    listeners.append(listener)

    def remove() -> None:
        if listener in listeners:
            listeners.remove(listener)
        if not listeners and _placed:
            _placed.pop().close()

    return remove


def bytes_of(tensor: torch.Tensor) -> int:
    """Size of the elements."""
    return tensor.numel() * tensor.element_size()


def _place() -> ExitStack:
    placed = ExitStack()
    try:
        for name, sides in process_group.TRANSFERS.items():
            if hasattr(dist.ProcessGroup, name):
                placed.callback(replace(dist.ProcessGroup, name, process_group.method(name, sides)))
        for name in ("wait", "synchronize", "block_current_stream"):
            if hasattr(dist.Work, name):
                placed.callback(replace(dist.Work, name, process_group.waiting(getattr(dist.Work, name))))
        for name, edge in (
            ("_start_coalescing", process_group.coalescing_began),
            ("_end_coalescing", process_group.coalescing_ended),
        ):
            if hasattr(dist.ProcessGroup, name):
                placed.callback(replace(dist.ProcessGroup, name, edge(getattr(dist.ProcessGroup, name))))
        for packet in functional.operators():
            placed.callback(replace(packet, "_op", functional.listening(packet)))
        placed.callback(process_group.forget)
        placed.callback(functional.forget)
    except BaseException:
        placed.close()
        raise
    return placed
