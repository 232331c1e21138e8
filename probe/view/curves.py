"""Curves: one row over ranks, and the numbers of the run."""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterator, Sequence
from itertools import groupby, islice
from typing import Any, NamedTuple

import numpy as np

from probe.core.naming import RUN
from probe.core.storage.duckdb_reader import Rows
from probe.core.storage.layout import rank_span
from probe.core.storage.sql import literal
from probe.view.cells import KINDS, CellArrays, CellQuery, fetched
from probe.view.heatmap import Span, rank_cells
from probe.view.row_names import row_names
from probe.view.run_reader import RunReader

MOST_RANKS = 64
"""Ranks of one answer at most."""
MOST_POINTS = 20_000
SENT = ("minimum", "maximum", "nan", "inf")
"""Arrays that curves have."""
VALUE = "value"
"""Column of the numbers of the run."""


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


class Curves(NamedTuple):
    """Several curves over the same steps."""

    lines: list[Any]
    spans: list[tuple[int, int]]
    """First and last step of each point."""
    cells: CellArrays


def row_curves(
    reader: RunReader, signal: str, op: str, row: str, span: Span, ranks: Container[int] | None, points: int
) -> Curves:
    """Return the curves of a row, one a rank.

    Args:
        ranks: ranks that are wanted; None for all of the run.
        points: points at most, each of as many steps that have a number.

    Raises:
        RunGone, ValueError: as :meth:`RunReader.rows`.
    """
    there = reader.listing().run.ranks
    chosen = list(islice((rank for rank in there if ranks is None or rank in ranks), MOST_RANKS))
    found = rank_cells(reader, row_names(reader, signal), signal, op, span, row, chosen)
    return _curves(chosen, found, points)


def number_names(reader: RunReader) -> list[str]:
    """Return the names of the numbers of the run, in the order in which its lowest rank has them."""
    listing = reader.listing()
    rank = listing.run.ranks[0]
    with reader.rows([RUN], ranks=[rank]) as rows:
        if RUN not in rows.signals:
            return []
        query = f"SELECT name FROM {rows.view(RUN)} WHERE rank = {rank} GROUP BY name ORDER BY min(step), name"  # noqa: S608
        return [name for (name,) in rows.connection.execute(query).fetchall()]


def number_curves(reader: RunReader, names: Sequence[str], span: Span, rank: int | None, points: int) -> Curves:
    """Return the curves of numbers of the run, as one rank has them.

    Args:
        rank: the rank; None for the lowest one.

    Raises:
        RunGone, ValueError: as :meth:`RunReader.rows`.
    """
    listing = reader.listing()
    own = listing.run.ranks[0] if rank is None else rank
    wanted = list(dict.fromkeys(names))[:MOST_RANKS]
    with reader.rows([RUN], span.first, span.last, [own]) as rows:
        found = _number_cells(rows, wanted, own, span)
    return _curves(wanted, found, points)


def _number_cells(rows: Rows, names: Sequence[str], rank: int, span: Span) -> dict[str, Any]:
    if RUN not in rows.signals or not names:
        return {name: np.zeros(0, dtype=kind) for name, kind in {"line": "<i8", "block": "<i8", **KINDS}.items()}
    listed = ", ".join(map(literal, names))
    keys = {"line": f"list_position([{listed}], v.name) - 1", "block": "v.step"}
    condition = f"v.rank = {rank} AND v.name IN ({listed}) AND {span.sql()}"
    CellQuery(keys, VALUE, f"{rows.view(RUN)} AS v", condition).make(rows.connection, "line_cells")
    return fetched(rows.connection, f"SELECT {', '.join(('line', 'block', *KINDS))} FROM line_cells")  # noqa: S608


def _curves(lines: Sequence[Any], found: dict[str, Any], points: int) -> Curves:
    """Return curves of cells whose ``line`` is one of ``lines``, or for names the index of one."""
    points = max(1, min(points, MOST_POINTS))
    places = {line: n for n, line in enumerate(lines)}
    by_name = lines and isinstance(lines[0], str)
    at = found["line"] if by_name else np.array([places[line] for line in found["line"].tolist()], dtype=np.int64)
    steps = np.unique(found["block"])
    cells = CellArrays.of(len(lines), len(steps))
    cells.merge(at, np.searchsorted(steps, found["block"]), found)
    number = max(1, -(-len(steps) // points))
    spans = [(int(own[0]), int(own[-1])) for n in range(0, len(steps), number) if len(own := steps[n : n + number])]
    return Curves(list(lines), spans, cells.grouped(number) if number > 1 else cells)
