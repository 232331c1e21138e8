"""Extent of the rows that were judged, and the findings that the run itself counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from probe.core.analysis.diagnosis.evaluate import EvaluatedRank
from probe.core.storage.directories import RecordedRun
from probe.core.storage.layout import ranks_text

READ = ("csv", "parquet", "sqlite")
"""Formats whose rows can be judged."""
LISTED = 8
"""Number of ranks whose findings are listed one by one."""


class Extent(NamedTuple):
    """Ranks, steps, rows and signals that were judged."""

    ranks: tuple[int, ...]
    """Ranks with rows."""
    steps: int
    """Number of steps of the rank that has most."""
    rows: int
    signals: tuple[str, ...]

    @property
    def text(self) -> str:
        """Text such as ``2 ranks, 24 sampled steps, 1,152 rows of actv, grad_reduced``."""
        signals = f" of {', '.join(self.signals)}" if self.signals else ""
        return (
            f"{_many(len(self.ranks), 'rank')}, {_many(self.steps, 'sampled step')}, {_many(self.rows, 'row')}{signals}"
        )


def extent(judged: Sequence[EvaluatedRank]) -> Extent:
    """Extent over all ranks."""
    signals = sorted(set[str]().union(*(rank.signals for rank in judged)))
    ranks = tuple(rank.rank for rank in judged if rank.rows)
    return Extent(ranks, max((rank.counted for rank in judged), default=0), sum(r.rows for r in judged), tuple(signals))


def formats(run: RecordedRun) -> tuple[str, ...]:
    """Formats that the manifests of a run name."""
    found: dict[str, None] = {}
    for directory in run.directories:
        given = directory.manifest.config.get("format")
        named = [given] if isinstance(given, str) else given if isinstance(given, list) else []
        found.update(dict.fromkeys(str(each) for each in named))
    return tuple(found)


def nothing_judged(run: RecordedRun) -> str:
    """Sentence that explains why nothing of a run could be judged."""
    named = formats(run)
    written = f"format{'s' * (len(named) > 1)} {', '.join(named)}" if named else "formats that no manifest names"
    if set(named) & set(READ):
        return f"nothing could be judged: {written}, and there is no row that can be read"
    return f"nothing could be judged: {written}; rows are in {', '.join(READ[:-1])} and {READ[-1]}"


def counted(run: RecordedRun) -> dict[int, int | None]:
    """Number of findings that the run itself counted, by rank; None where the manifest has none."""
    return {directory.rank: directory.manifest.findings for directory in run.directories}


def run_found(run: RecordedRun) -> Iterator[str]:
    """Sentences about the findings that the run itself counted, by its manifests."""
    numbers = counted(run)
    some = {rank: n for rank, n in numbers.items() if n}
    if some:
        each = ", ".join(f"rank {rank}: {n:,}" for rank, n in list(some.items())[:LISTED])
        more = f", and {_many(len(some) - LISTED, 'more rank')}" if len(some) > LISTED else ""
        yield f"While it ran, the run's rules reported {sum(some.values()):,} ({each}{more})."
    silent = [rank for rank, n in numbers.items() if n is None]
    if silent:
        of = f"rank{'s' * (len(silent) > 1)} {ranks_text(silent)}"
        yield f"The manifest of {of} has no number of findings: the run has not ended, or was killed."
    if not some and not silent:
        yield "While it ran, the run's rules reported no finding."


def _many(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"
