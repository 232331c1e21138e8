"""Exchange of tables between ranks while training runs: one small collective a step, of a size that all know."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from probe.core.backend.protocols import Exchange, Parallel

ROWS = 64
"""Least number of rows with room. When ranks meet, there is room for twice as many rows as any has; all ranks make room
for more in the step after one with too many."""

Table = npt.NDArray[Any]


class TableExchange:
    """Exchange of one table of each of ``ranks`` in each step.

    Args:
        ranks: in ascending order.
        exchange: channel between them.
        row: type of a row, the same on all of them.
        rows: largest number of rows on any of them when they met.
    """

    def __init__(self, ranks: Sequence[int], exchange: Exchange, row: np.dtype[Any], rows: int) -> None:
        self._ranks, self._exchange, self._row = tuple(ranks), exchange, row
        self._room = ROWS
        self._make_room(2 * rows)

    def swap(self, step: int, mine: Table) -> list[Table]:
        """Send a table and receive those of all ranks, in their order; of each as many rows as there was room for.

        Raises:
            Exception: if a rank did not come, or came with another step.
        """
        payloads = self._exchange.gather(self._packed(step, mine))
        steps, wanted, tables = zip(*(self._unpacked(payload) for payload in payloads), strict=True)
        if set(steps) != {step}:
            each = ", ".join(f"rank {rank} step {other}" for rank, other in zip(self._ranks, steps, strict=True))
            raise RuntimeError(f"ranks collect different steps: {each}")
        self._make_room(max(wanted))
        return list(tables)

    def close(self) -> None:
        """End the exchange."""
        self._exchange.close()

    def _make_room(self, rows: int) -> None:
        """Double the room until ``rows`` fit; equal on all ranks, since all receive the same numbers."""
        while self._room < rows:
            self._room *= 2

    def _packed(self, step: int, table: Table) -> npt.NDArray[np.uint8]:
        """Pack the step, the number of rows, and as many rows as there is room for."""
        payload = np.zeros(16 + self._room * self._row.itemsize, np.uint8)
        payload[:16] = np.array([step, len(table)], np.int64).view(np.uint8)
        sent = table[: self._room].view(np.uint8)
        payload[16 : 16 + len(sent)] = sent
        return payload

    def _unpacked(self, payload: npt.NDArray[np.uint8]) -> tuple[int, int, Table]:
        step, rows = payload[:16].copy().view(np.int64).tolist()
        taken = min(rows, self._room) * self._row.itemsize
        return step, rows, payload[16 : 16 + taken].copy().view(self._row)


def meet(
    parallel: Parallel, ranks: Sequence[int], where: str, alike: str, rows: int, seconds: float
) -> tuple[Exchange, int]:
    """Wait for ``ranks``; return the channel between them, and the largest number of rows on any.

    Args:
        alike: text that must be the same on all of them.

    Raises:
        TimeoutError: if one of them did not come.
        ValueError: if one runs with another configuration.
    """
    own = json.dumps({"alike": alike, "rows": rows})
    exchange = parallel.meet(ranks, where, own.encode(), seconds)
    others = [json.loads(other) for other in exchange.received]
    for rank, other in zip(ranks, others, strict=True):
        if other["alike"] != alike:
            exchange.close()
            raise ValueError(f"rank {rank} runs with another configuration: {other['alike']}, here {alike}")
    return exchange, max(other["rows"] for other in others)


def identity_of(about: Iterable[object]) -> int:
    """Hash a description to 64 bits; the same on every rank, unlike Python's own ``hash``."""
    return int.from_bytes(hashlib.blake2b(repr([*about]).encode(), digest_size=8).digest(), "little")
