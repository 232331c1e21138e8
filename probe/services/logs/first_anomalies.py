"""First anomaly of each rank and kind, with the number of its repetitions, by time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from probe.services.logs.signs import SEVERITIES
from probe.services.logs.timestamps import seconds_of

MOST = 2048
"""Largest number of ranks and kinds that are kept; what lies beyond is counted."""
EXCERPT = 240
"""Characters of a message that are kept."""


@dataclass
class FirstAnomaly:
    """The first anomaly of a kind on a rank."""

    rank: int | None
    kind: str
    severity: str
    time: str | None
    file: str
    line: int
    message: str
    anomaly: dict[str, Any]
    order: tuple[float, int]
    """Seconds since 1970, and the order of reading."""
    number: int = 1


class FirstAnomalies:
    """Collection of them, of bounded size."""

    def __init__(self) -> None:
        self.number = 0
        """Anomalies seen."""
        self.left_out = 0
        """Anomalies of ranks and kinds beyond the limit."""
        self._first: dict[tuple[int | None, str], FirstAnomaly] = {}

    def add(self, record: dict[str, Any]) -> None:
        """Count the anomalies of a ``record``, and keep those that are the first by time."""
        seconds = seconds_of(record["timestamp"]) if record["timestamp"] else None
        for anomaly in record["anomalies"]:
            self.number += 1
            key = record["rank"], anomaly["type"]
            known = self._first.get(key)
            if known is None and len(self._first) >= MOST:
                self.left_out += 1
                continue
            order = (float("inf") if seconds is None else seconds), self.number
            if known is None or order < known.order:
                self._first[key] = _first(record, anomaly, order, 1 if known is None else known.number + 1)
            else:
                known.number += 1

    def __iter__(self) -> Iterator[FirstAnomaly]:
        """Yield them by time, those without a time last; of one time the gravest first."""
        return iter(sorted(self._first.values(), key=lambda each: (each.order[0], _gravity(each), each.order[1])))

    def __len__(self) -> int:
        return len(self._first)


def _gravity(first: FirstAnomaly) -> int:
    return SEVERITIES.index(first.severity) if first.severity in SEVERITIES else len(SEVERITIES)


def _first(record: dict[str, Any], anomaly: dict[str, Any], order: tuple[float, int], number: int) -> FirstAnomaly:
    return FirstAnomaly(
        record["rank"], anomaly["type"], anomaly["severity"], record["timestamp"], record.get("file", ""),
        record.get("line", 0), record["raw_message"][:EXCERPT], anomaly, order, number,
    )  # fmt: skip
