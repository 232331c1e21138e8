"""Ranks that tell each other something beside training: a process group of the monitor's own, on the hosts' network.

It is made from the store directly, not by ``new_group``: that counts the groups of a process, and a thread that counts
while training does would make ranks disagree.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

POLL_SECONDS = 0.02
"""Between looks for the other ranks. Waiting in the store itself would lock it for the training thread."""


class GlooExchange:
    """Between ``ranks``, which have all come."""

    def __init__(self, store: Any, ranks: Sequence[int], seconds: float, heard: Sequence[bytes]) -> None:
        self.heard = heard
        self._size = len(ranks)
        own = list(ranks).index(dist.get_rank())
        gloo: Any = dist.ProcessGroupGloo  # torch annotates few of its methods
        self._group = gloo(store, own, self._size, timedelta(seconds=seconds))

    def gather(self, payload: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """What all ranks give, a row each."""
        if self._group is None:
            raise RuntimeError("the exchange is closed")
        own = torch.from_numpy(payload)
        theirs = [torch.empty_like(own) for _ in range(self._size)]
        self._group.allgather([theirs], [own]).wait()
        return np.stack([tensor.numpy() for tensor in theirs])

    def close(self) -> None:
        """Leaves the group; the others then fail at once instead of waiting."""
        self._group = None


def has_store() -> bool:
    """Whether processes have met in one."""
    return dist.is_available() and dist.is_initialized()


def store(where: str, address: tuple[str, int] | None, serves: bool) -> Any:
    """The part called ``where`` of the store in which processes have met, or of the one at ``address``.

    Raises:
        RuntimeError: if there is none.
    """
    return _part_of_job(where) if address is None else PrefixStore(f"probe/{where}", _at(*address, serves))


def _part_of_job(where: str) -> Any:
    default: Any = dist.distributed_c10d._get_default_store()
    # A client of its own where torch can make one: what waits in a client keeps training from using it.
    return PrefixStore(f"probe/{where}", default.clone() if hasattr(default, "clone") else default)


@cache
def _at(host: str, port: int, serves: bool) -> Any:
    """Kept until the process ends: another monitor may use it, on this rank or on others."""
    return TCPStore(host, port, is_master=serves, wait_for_workers=False)


def meet(ranks: Sequence[int], where: str, said: bytes, seconds: float) -> GlooExchange:
    """Waits until all ``ranks`` have come to ``where``, each saying something.

    Raises:
        TimeoutError: if one of them did not come, naming it.
    """
    store = _part_of_job(where)
    store.set(f"rank {dist.get_rank()}", said.decode())
    end = time.monotonic() + seconds
    missing = list(ranks)
    while missing := [rank for rank in missing if not store.check([f"rank {rank}"])]:
        if time.monotonic() > end:
            raise TimeoutError(f"of ranks {list(ranks)}, {missing} did not come within {seconds:g} s")
        time.sleep(POLL_SECONDS)
    heard = [bytes(store.get(f"rank {rank}")) for rank in ranks]
    return GlooExchange(PrefixStore("group", store), ranks, seconds, heard)
