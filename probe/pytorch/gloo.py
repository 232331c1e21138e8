"""Communication between ranks beside training: a process group of the monitor's own, on the hosts' network.

The group is made from the store, not by ``new_group``, which numbers the groups of a process: if training and a thread
of the monitor made groups at the same time, their numbers would differ between ranks.
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
"""Seconds between checks for the other ranks. Waiting in the store itself would lock it for the training thread."""

BLAME_SECONDS = 1.0
"""Seconds in which ranks record in the store that they took part in a failed exchange."""


class GlooExchange:
    """Exchange between ``ranks``, which have all met. They connect at the first call of :meth:`gather`: a rank whose
    configuration differs leaves before, so that no other waits for its connection."""

    def __init__(self, store: Any, ranks: Sequence[int], seconds: float, received: Sequence[bytes]) -> None:
        self.received = received
        self._store, self._ranks, self._own = store, tuple(ranks), dist.get_rank()
        self._seconds, self._closed = seconds, False
        self._group: Any = None  # torch annotates few of its methods

    def gather(self, payload: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return the payloads of all ranks, a row each.

        Raises:
            TimeoutError: with the ranks that did not take part.
        """
        if self._closed:
            raise RuntimeError("the exchange is closed")
        numbers = torch.from_numpy(payload)
        theirs = [torch.empty_like(numbers) for _ in self._ranks]
        try:
            self._connected().allgather([theirs], [numbers]).wait()
        except Exception as error:
            raise TimeoutError(f"of ranks {list(self._ranks)}, {self._failure_cause()}") from error
        return np.stack([tensor.numpy() for tensor in theirs])

    def _connected(self) -> Any:
        if self._group is None:
            if gone := [rank for rank in self._ranks if self._store.check([f"left {rank}"])]:
                raise RuntimeError(f"{gone} have left before they connected")
            gloo: Any = dist.ProcessGroupGloo
            number, seconds = self._ranks.index(self._own), timedelta(seconds=self._seconds)
            self._group = gloo(PrefixStore("group", self._store), number, len(self._ranks), seconds)
        return self._group

    def close(self) -> None:
        """Leave the group, so that the others fail at once instead of waiting, with this rank as the cause."""
        if not self._closed:
            self._closed, self._group = True, None
            with suppress(Exception):  # the rank that kept the store may be gone
                self._store.set(f"left {self._own}", "")

    def _failure_cause(self) -> str:
        """Return the cause of a failure. Each rank that took part records that in the store; the others are missing."""
        try:
            self._store.set(f"came {self._own}", "")
            absent, end = [rank for rank in self._ranks if rank != self._own], time.monotonic() + BLAME_SECONDS
            while absent := [rank for rank in absent if not self._store.check([f"came {rank}"])]:
                if gone := [rank for rank in absent if self._store.check([f"left {rank}"])]:
                    return f"{gone} have left the exchange"
                if time.monotonic() > end:
                    return f"{absent} did not come"
                time.sleep(POLL_SECONDS)
        except Exception:  # noqa: BLE001 - the store is gone with the rank that kept it
            return "one did not come: the store that would name it is gone"
        return "none is missing: the connection between them broke"


class JobStore:
    """Part of the store in which processes have met. Every process that can connect to the store can write into it:
    the contents prove nothing by themselves."""

    def __init__(self, part: Any) -> None:
        self._part = part

    def claim(self, key: str, value: bytes) -> bytes:
        """Store ``value`` under ``key`` unless the key is taken; return the value that is stored now."""
        return bytes(self._part.compare_set(key, "", value.decode()))

    def get(self, key: str) -> bytes | None:
        """Return the stored value, or None."""
        return bytes(self._part.get(key)) if self._part.check([key]) else None

    def close(self) -> None:
        """Do nothing: the connection ends with the last reference."""


def store(where: str) -> JobStore:
    """Return the part called ``where`` of the store in which processes have met.

    Raises:
        RuntimeError: if there is none.
    """
    return JobStore(_part_of_job(where))


def _part_of_job(where: str) -> Any:
    default: Any = dist.distributed_c10d._get_default_store()
    # a separate client, if torch can make one: a client in which a thread waits is locked for training
    return PrefixStore(f"probe/{where}", default.clone() if hasattr(default, "clone") else default)


def meet(ranks: Sequence[int], where: str, message: bytes, seconds: float) -> GlooExchange:
    """Wait until all ``ranks`` have come to ``where``, each with a message.

    Raises:
        TimeoutError: with the ranks that did not come in time.
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
