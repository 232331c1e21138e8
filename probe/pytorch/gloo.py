"""Exchanges between ranks beside training: a process group of the monitor's own, on the hosts' network.

It is made from the store directly, not by ``new_group``: that numbers the groups of a process, and a group made on a
thread while training makes one would get different numbers on different ranks.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

POLL_SECONDS = 0.02
"""Between looks for the other ranks. Waiting in the store itself would lock it for the training thread."""

BLAME_SECONDS = 1.0
"""Seconds in which the ranks that took part in a failed exchange report themselves."""


class GlooExchange:
    """An exchange between ``ranks``, which have all come. They connect at their first exchange: a rank whose
    configuration differs leaves before it, and no other waits for its connection."""

    def __init__(self, store: Any, ranks: Sequence[int], seconds: float, received: Sequence[bytes]) -> None:
        self.received = received
        self._store, self._ranks, self._own = store, tuple(ranks), dist.get_rank()
        self._seconds, self._closed = seconds, False
        self._group: Any = None  # torch annotates few of its methods

    def gather(self, payload: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """The payloads of all ranks, a row each.

        Raises:
            TimeoutError: if one of them did not come, naming it.
        """
        if self._closed:
            raise RuntimeError("the exchange is closed")
        own = torch.from_numpy(payload)
        theirs = [torch.empty_like(own) for _ in self._ranks]
        try:
            self._connected().allgather([theirs], [own]).wait()
        except Exception as error:
            raise TimeoutError(f"of ranks {list(self._ranks)}, {self._blamed()}") from error
        return np.stack([tensor.numpy() for tensor in theirs])

    def _connected(self) -> Any:
        if self._group is None:
            if left := [rank for rank in self._ranks if self._store.check([f"left {rank}"])]:
                raise RuntimeError(f"{left} have left before they connected")
            gloo: Any = dist.ProcessGroupGloo
            own, seconds = self._ranks.index(self._own), timedelta(seconds=self._seconds)
            self._group = gloo(PrefixStore("group", self._store), own, len(self._ranks), seconds)
        return self._group

    def close(self) -> None:
        """Leaves the group; the others then fail at once instead of waiting, and know why."""
        if not self._closed:
            self._closed, self._group = True, None
            with suppress(Exception):  # the rank that kept the store may be gone
                self._store.set(f"left {self._own}", "")

    def _blamed(self) -> str:
        """Why an exchange failed. Each rank that was there writes so into the store: those that did not are missing."""
        try:
            self._store.set(f"came {self._own}", "")
            absent, end = [rank for rank in self._ranks if rank != self._own], time.monotonic() + BLAME_SECONDS
            while absent := [rank for rank in absent if not self._store.check([f"came {rank}"])]:
                if left := [rank for rank in absent if self._store.check([f"left {rank}"])]:
                    return f"{left} have left the exchange"
                if time.monotonic() > end:
                    return f"{absent} did not come"
                time.sleep(POLL_SECONDS)
        except Exception:  # noqa: BLE001 - the store is gone with the rank that kept it
            return "one did not come: the store that would name it is gone"
        return "none is missing: the connection between them broke"


def has_store() -> bool:
    """Whether processes have met in one."""
    return dist.is_available() and dist.is_initialized()


class JobStore:
    """A part of the store in which processes have met. Anyone who can connect to that store can write into it: the
    contents prove nothing by themselves."""

    def __init__(self, part: Any) -> None:
        self._part = part

    def claim(self, key: str, value: bytes) -> bytes:
        """Stores ``value`` under ``key`` unless the key is taken; returns the value that is stored now."""
        return bytes(self._part.compare_set(key, "", value.decode()))

    def get(self, key: str) -> bytes | None:
        """The stored value, or None."""
        return bytes(self._part.get(key)) if self._part.check([key]) else None

    def close(self) -> None:
        """The connection ends with the last reference."""


def store(where: str) -> JobStore:
    """The part called ``where`` of the store in which processes have met.

    Raises:
        RuntimeError: if there is none.
    """
    return JobStore(_part_of_job(where))


def _part_of_job(where: str) -> Any:
    default: Any = dist.distributed_c10d._get_default_store()
    # A client of its own where torch can make one: a client in which a thread waits is locked for training.
    return PrefixStore(f"probe/{where}", default.clone() if hasattr(default, "clone") else default)


def meet(ranks: Sequence[int], where: str, message: bytes, seconds: float) -> GlooExchange:
    """Waits until all ``ranks`` have come to ``where``, each with a message.

    Raises:
        TimeoutError: if one of them did not come, naming it.
    """
    store = _part_of_job(where)
    store.set(f"rank {dist.get_rank()}", message.decode())
    end = time.monotonic() + seconds
    missing = list(ranks)
    while missing := [rank for rank in missing if not store.check([f"rank {rank}"])]:
        if time.monotonic() > end:
            raise TimeoutError(f"of ranks {list(ranks)}, {missing} did not come within {seconds:g} s")
        time.sleep(POLL_SECONDS)
    received = [bytes(store.get(f"rank {rank}")) for rank in ranks]
    return GlooExchange(store, ranks, seconds, received)
