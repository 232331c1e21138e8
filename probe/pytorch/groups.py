"""Process groups of ``torch.distributed``, as seen by core."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from probe.core.launch import number_in


def has_store() -> bool:
    """Return whether processes have met, in a store of the job."""
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    """Return this process's rank in the default group, else from the launcher, else 0."""
    return dist.get_rank() if has_store() else number_in(os.environ, "RANK", 0)


def world_size() -> int:
    """Return the number of processes."""
    return dist.get_world_size() if has_store() else number_in(os.environ, "WORLD_SIZE", 1)


def collectives() -> int:
    """Return the number of collectives of all ranks so far; 0 if nothing counts them."""
    group = dist.group.WORLD if has_store() else None
    try:
        return int(getattr(group, "_get_sequence_number_for_group", int)())  # torch 2.4 to 2.13
    except RuntimeError:  # a backend that counts none
        return 0


def replicas(models: Iterable[torch.nn.Module]) -> list[int]:
    """Return the ranks of torch's ``DistributedDataParallel`` in ``models``; nothing if there is none."""
    if not has_store():
        return []
    wrappers = [module for model in models for module in model.modules() if isinstance(module, DistributedDataParallel)]
    groups = {tuple(ranks_of(wrapper.process_group)) for wrapper in wrappers}
    return list(groups.pop()) if len(groups) == 1 else []


def ranks_of(group: Any) -> list[int]:
    """Return the global ranks of ``group``; this rank alone if ``group`` is None or does not contain it.

    Raises:
        ValueError: if ``group`` is no process group.
    """
    is_available = dist.is_available()
    if group is None or (is_available and group == dist.GroupMember.NON_GROUP_MEMBER):
        return [rank()]
    try:
        if is_available and isinstance(group, dist.ProcessGroup):
            return list(dist.get_process_group_ranks(group)) if has_store() else [rank()]
    except KeyError:  # the group was destroyed: the error below names it
        pass
    raise ValueError(f"expected a process group, such as torch.distributed.new_group() makes, got {group!r}")
