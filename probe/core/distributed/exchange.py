"""Tables that ranks tell each other while training runs: one small collective a step, of a size that all know."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from probe.core.backend.protocols import Exchange, Parallel

ROWS = 64
"""How many rows there is room for at least. There is room for twice as many as any rank has when they meet; all ranks
make room for more in the step after too many came."""

Table = npt.NDArray[Any]


class TableExchange:
    """Where ``ranks`` tell each other a table in each step.

    Args:
        ranks: in ascending order.
        exchange: between them.
        row: the type of a row, the same on all of them.
        rows: as many as the one that has most had when they met.
    """

    def __init__(self, ranks: Sequence[int], exchange: Exchange, row: np.dtype[Any], rows: int) -> None:
        self._ranks, self._exchange, self._row = tuple(ranks), exchange, row
        self._room = ROWS
        self._make_room(2 * rows)

    def swap(self, step: int, mine: Table) -> list[Table]:
        """The tables of all ranks, in their order; of each as many rows as there was room for.

        Raises:
            Exception: if a rank did not come, or came with another step.
        """
        heard = self._exchange.gather(self._packed(step, mine))
        steps, wanted, tables = zip(*(self._unpacked(payload) for payload in heard), strict=True)
        if set(steps) != {step}:
            told = ", ".join(f"rank {rank} step {other}" for rank, other in zip(self._ranks, steps, strict=True))
            raise RuntimeError(f"ranks collect different steps: {told}")
        self._make_room(max(wanted))
        return list(tables)

    def close(self) -> None:
        """Nothing more will be said."""
        self._exchange.close()

    def _make_room(self, rows: int) -> None:
        """The same on all ranks, since all have heard the same."""
        while self._room < rows:
            self._room *= 2

    def _packed(self, step: int, table: Table) -> npt.NDArray[np.uint8]:
        """As many rows as there is room for, behind the step and the number of rows that there are."""
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
    """Waits for ``ranks``; the way between them, and how many rows the one with most has.

    Args:
        alike: what must be the same on all of them.

    Raises:
        TimeoutError: if one of them did not come.
        ValueError: if one runs with another configuration.
    """
    told = json.dumps({"alike": alike, "rows": rows})
    exchange = parallel.meet(ranks, where, told.encode(), seconds)
    heard = [json.loads(other) for other in exchange.heard]
    for rank, other in zip(ranks, heard, strict=True):
        if other["alike"] != alike:
            exchange.close()
            raise ValueError(f"rank {rank} runs with another configuration: {other['alike']}, here {alike}")
    return exchange, max(other["rows"] for other in heard)


def identity_of(about: Iterable[object]) -> int:
    """A number of 64 bits for what is described so; the same on every rank, unlike Python's own ``hash``."""
    return int.from_bytes(hashlib.blake2b(repr([*about]).encode(), digest_size=8).digest(), "little")
