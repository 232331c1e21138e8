"""Listeners to the calls of process groups by functions of ``torch.distributed``.

Every function of ``torch.distributed`` ends in a method of ``ProcessGroup``, and every handle is a ``Work``. Methods of
these two classes are replaced, not the functions: a function may have been imported by name anywhere, and
``torch.distributed`` and ``torch.compile`` compare functions by identity. Functional collectives bypass these classes,
so their operators are replaced as well.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist

from probe.core.backend.patch import Undo
from probe.core.backend.protocols import CollectiveListener, Remove
from probe.pytorch.collectives import functional, process_group
from probe.pytorch.collectives.dispatch import listeners


def listen(listener: CollectiveListener) -> Remove:
    """Send ``listener`` every call that comes through Python."""
    return listeners.listen(listener, _changes) if dist.is_available() else lambda: None


def _changes() -> Iterator[Undo]:
    yield from process_group.changes()
    yield from functional.changes()


def bytes_of(tensor: torch.Tensor) -> int:
    """Return the bytes of all elements."""
    return tensor.numel() * tensor.element_size()
