"""Which collectives a run makes, and from where: logged once."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence

from probe.core.backend.call_stack import Stack, text
from probe.core.messages import plural

DISTINCT = 1000
"""Calls that are told apart; what comes on top is counted."""

_log = logging.getLogger("probe.collectives")


class CallLog:
    """Every distinct (operation, group, dtypes, stack), with how often it was called."""

    def __init__(self) -> None:
        self._calls: Counter[tuple[str, tuple[int, ...], str, Stack]] = Counter()
        self._more = 0

    def add(
        self, operation: str, ranks: tuple[int, ...], dtypes: Sequence[str], calling: Stack, again: bool = False
    ) -> None:
        """Notes a call, or one more transfer of the call before."""
        entry = operation, ranks, ",".join(dict.fromkeys(dtypes)), calling
        if len(self._calls) < DISTINCT or entry in self._calls:
            self._calls[entry] += not again
        else:
            self._more += not again

    def lines(self) -> Iterator[str]:
        """One line a distinct call."""
        for (operation, ranks, dtypes, calling), count in self._calls.items():
            where = "; ".join(text(line) for line in calling)
            yield f"collective {operation} group={list(ranks)} dtype={dtypes or 'none'} calls={count} stack: {where}"
        if self._more:
            yield f"collectives: {self._more} more {plural(self._more, 'call')} of other kinds"

    def write(self, rank: int, level: int) -> None:
        """Writes what was noted."""
        lines = list(self.lines())
        _log.log(level, "collectives heard on rank %d before the second training step's update: %d", rank, len(lines))
        for line in lines:
            _log.log(level, "%s", line)
