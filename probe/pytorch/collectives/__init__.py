"""Listening to ``torch.distributed``: where its functions hand over to a process group.

Every function of ``torch.distributed`` ends in a method of ``ProcessGroup``, and every handle is a ``Work``: these two
classes are listened to, not the functions, so that it does not matter who has kept a reference to which function, and
when; and functions stay the very objects that ``torch.distributed`` and ``torch.compile`` compare. Functional
collectives go past these classes: their operators are listened to as well.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from probe.core.backend.protocols import CollectiveListener, Remove
from probe.pytorch.collectives.dispatch import listeners


def listen(listener: CollectiveListener) -> Remove:
    """Sends ``listener`` every call that comes through Python."""
    return listeners.listen(listener) if dist.is_available() else lambda: None


def bytes_of(tensor: torch.Tensor) -> int:
    """Size of the elements."""
    return tensor.numel() * tensor.element_size()
