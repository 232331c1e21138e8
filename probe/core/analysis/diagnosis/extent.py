"""How much of a run was judged, and what the run itself has counted: where no row was judged, none is found bad."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from probe.core.analysis.diagnosis.evaluate import Judged
from probe.core.storage.directories import RecordedRun
from probe.core.storage.layout import ranks_text

READ = ("csv", "parquet", "sqlite")
"""Formats whose rows can be judged."""
LISTED = 8
"""Ranks whose findings are shown one by one."""


class Extent(NamedTuple):
    """What was judged."""

    ranks: tuple[int, ...]
    """Those with rows."""
    steps: int
    """Of the rank that has most."""
    rows: int
    signals: tuple[str, ...]

    @property
    def text(self) -> str:
        """In words, such as ``2 ranks, 24 steps, 1,152 rows of actv, grad_reduced``."""
        signals = f" of {', '.join(self.signals)}" if self.signals else ""
        return (
            f"{_many(len(self.ranks), 'rank')}, {_many(self.steps, 'sampled step')}, {_many(self.rows, 'row')}{signals}"
        )


def extent(judged: Sequence[Judged]) -> Extent:
    """What was judged of all ranks."""
    signals = sorted(set[str]().union(*(rank.signals for rank in judged)))
    ranks = tuple(rank.rank for rank in judged if rank.rows)
    return Extent(ranks, max((rank.counted for rank in judged), default=0), sum(r.rows for r in judged), tuple(signals))


def formats(run: RecordedRun) -> tuple[str, ...]:
    """The formats that the manifests of a run name."""
    found: dict[str, None] = {}
    for directory in run.directories:
        given = directory.manifest.config.get("format")
        named = [given] if isinstance(given, str) else given if isinstance(given, list) else []
        found.update(dict.fromkeys(str(each) for each in named))
    return tuple(found)


def nothing_judged(run: RecordedRun) -> str:
    """Why nothing of a run could be judged."""
    named = formats(run)
    told = f"format{'s' * (len(named) > 1)} {', '.join(named)}" if named else "formats that no manifest names"
    if set(named) & set(READ):
        return f"nothing could be judged: {told}, and there is no row that can be read"
    return f"nothing could be judged: {told}; rows are in {', '.join(READ[:-1])} and {READ[-1]}"


def counted(run: RecordedRun) -> dict[int, int | None]:
    """Of each rank how many findings the run itself had when it ended; None where the manifest does not say."""
    return {directory.rank: directory.manifest.findings for directory in run.directories}


def run_found(run: RecordedRun) -> Iterator[str]:
    """In sentences, what the manifests say that the run itself has found while it went on."""
    numbers = counted(run)
    some = {rank: n for rank, n in numbers.items() if n}
    if some:
        each = ", ".join(f"rank {rank}: {n:,}" for rank, n in list(some.items())[:LISTED])
        more = f", and {_many(len(some) - LISTED, 'more rank')}" if len(some) > LISTED else ""
        yield f"The run's own rules found {sum(some.values()):,} while it went on ({each}{more})."
    silent = [rank for rank, n in numbers.items() if n is None]
    if silent:
        of = f"rank{'s' * (len(silent) > 1)} {ranks_text(silent)}"
        yield f"What the run found on {of} is not in the manifest: it has not ended, or was killed."
    if not some and not silent:
        yield "The run's own rules found nothing while it went on."


def _many(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"
