"""Curves: one row over ranks, and the numbers of the run."""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterator, Sequence
from itertools import groupby, islice

from probe.core.analysis.pictures.cells import Picture, Span
from probe.core.analysis.pictures.run_numbers import number_curves
from probe.core.naming import RUN
from probe.core.storage.layout import rank_span
from probe.view.heatmap import heatmap_of_ranks
from probe.view.run_reader import RunReader

MOST_RANKS = 64
"""Ranks of one answer at most."""
MOST_POINTS = 20_000
SENT = ("minimum", "maximum", "nan", "inf")
"""Arrays that curves have."""


class RankChoice:
    """Ranks of a text such as ``0-3,7``; it takes no more room than the text.

    Raises:
        ValueError: if it is no such text, or has more than :data:`MOST_RANKS` spans.
    """

    def __init__(self, text: str) -> None:
        parts = [part for part in text.split(",") if part]
        self._single = frozenset(int(part) for part in parts if "-" not in part)
        self._spans = list(dict.fromkeys(span for part in parts if (span := rank_span(part)) is not None))
        if len(self._spans) > MOST_RANKS:
            raise ValueError(f"expected at most {MOST_RANKS} spans of ranks, got {len(self._spans)}")

    def __contains__(self, rank: object) -> bool:
        return rank in self._single or any(rank in span for span in self._spans)

    def __iter__(self) -> Iterator[int]:
        """Yield the ranks, each once and the lowest first."""
        for rank, _ in groupby(heapq.merge(sorted(self._single), *self._spans)):
            yield rank

    def __len__(self) -> int:
        """Number of ranks, those of several spans more than once."""
        return len(self._single) + sum(map(len, self._spans))


def row_curves(
    reader: RunReader, signal: str, op: str, row: str, span: Span, ranks: Container[int] | None, points: int
) -> Picture:
    """Return the curves of a row, one for each rank that has it.

    Args:
        ranks: ranks that are wanted; None for all of the run.
        points: points at most, each of as many steps that have a number.

    Raises:
        RunGone, ValueError: as :meth:`RunReader.rows`.
    """
    there = reader.listing().run.ranks
    chosen = list(islice((rank for rank in there if ranks is None or rank in ranks), MOST_RANKS))
    return heatmap_of_ranks(reader, signal, op, span, points, row, chosen)


def run_curves(reader: RunReader, names: Sequence[str], span: Span, rank: int | None, points: int) -> Picture:
    """Return the curves of numbers of the run, as one rank has them.

    Args:
        rank: the rank; None for the lowest one.

    Raises:
        RunGone, ValueError: as :meth:`RunReader.rows`.
    """
    own = reader.listing().run.ranks[0] if rank is None else rank
    with reader.rows([RUN], span.first, span.last, [own]) as rows:
        return number_curves(rows, list(dict.fromkeys(names))[:MOST_RANKS], span, points, own)
