"""Communication groups of ``mindspore.communication``, as core sees them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from mindspore import communication

from probe.core.launch import number_in
from probe.mindspore.collective_functions import WORLD


def _ready() -> bool:
    return bool(communication.GlobalComm.INITED)


def rank() -> int:
    """Return this process's rank: the group's if communication is initialised, else the launcher's, else 0."""
    return int(communication.get_rank()) if _ready() else number_in(os.environ, "RANK_ID", 0)


def world_size() -> int:
    """Return the number of processes."""
    return int(communication.get_group_size()) if _ready() else number_in(os.environ, "RANK_SIZE", 1)


def replicas(models: Iterable[Any]) -> list[int]:  # noqa: ARG001
    """Return nothing: cells do not show among which ranks their gradients are averaged."""
    return []


def ranks_of(group: Any) -> list[int]:
    """Return the global ranks of ``group``, which MindSpore identifies by name; this rank alone if there is no group.

    Raises:
        ValueError: if no communication group has this name.
    """
    if group is None or (group in WORLD and not _ready()):
        return [rank()]
    try:
        if isinstance(group, str) and _ready():
            members = range(communication.get_group_size(group))
            return [int(communication.get_world_rank_from_group_rank(group, member)) for member in members]
    except (ValueError, RuntimeError):  # no such group: the error below names it
        pass
    raise ValueError(f"expected the name of a group that mindspore.communication.create_group has made, got {group!r}")
