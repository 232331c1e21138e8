"""Heatmaps: rows or ranks of a signal over steps, as single steps where there is room for them, else from levels."""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterator, Sequence
from itertools import groupby, islice

import numpy as np

from probe.core.analysis.pictures.cells import CellArrays, Picture, Span, cell_query, fetched, narrowed, picture
from probe.core.analysis.pictures.run_details import number_curves
from probe.core.analysis.pictures.survey import SurveyRow
from probe.core.naming import RUN
from probe.core.storage.layout import rank_span
from probe.core.storage.sql import literal, quoted
from probe.view.levels import STEPS, Level, LevelStore, row_cells, with_lines
from probe.view.row_names import row_names
from probe.view.run_reader import RunReader

MOST_COLUMNS = 4096
"""Columns of a picture at most."""
MOST_RAW = 500_000
"""Rows of files that are read for a picture at most; beyond them it is made from levels."""
MOST_RANKS = 64
"""Ranks of one answer at most, and ranks that a query names one by one; of more all are read."""
MOST_POINTS = 20_000
SENT = ("minimum", "maximum", "nan", "inf")
"""Arrays that curves have."""


def heatmap_of_rows(
    reader: RunReader, store: LevelStore, signal: str, op: str, span: Span, columns: int, rank: int | None
) -> Picture:
    """Return a picture with a line for each row of a signal.

    Args:
        columns: columns at most.
        rank: the rank that is shown; None for all ranks together.

    Raises:
        RunGone, ValueError: as :meth:`RunReader.rows`.
    """
    level = store.level(signal, op)
    names = row_names(reader, signal, level.rows)
    order = names.order(level.rows)
    number = _numbers(level, span) // (1 if rank is None else len(reader.listing().run.ranks))
    if rank is None and number > MOST_RAW:
        shown = _from_level(level, span, columns)
    else:
        shown = _from_rows(reader, level, op, span, columns, rank, 1 if number <= MOST_RAW else STEPS)
    lines = [names.label(level.rows[n]) for n in order]
    return shown._replace(lines=lines, cells=shown.cells.take(order, np.arange(shown.cells.shape[1])))


def heatmap_of_ranks(
    reader: RunReader, signal: str, op: str, span: Span, columns: int, row: str, ranks: Sequence[int]
) -> Picture:
    """Return a picture with a line for each of ``ranks`` that has a row, in this order.

    Args:
        row: label of the row.

    Raises:
        RunGone: as :meth:`RunReader.rows`.
        ValueError: likewise, and if there is no such row.
    """
    names = row_names(reader, signal)
    wanted = names.row(row)
    directories, few = names.directories_of(wanted), ranks if len(ranks) <= MOST_RANKS else None
    with reader.rows([signal], span.first, span.last, few) as rows:
        if signal not in rows.signals or op not in rows.numbers(signal):
            return Picture([], [], CellArrays.of(0, 0), True)
        conditions = [same_row(wanted), span.sql()]
        for column, values in (("directory", directories), ("rank", few)):
            if values is not None:
                conditions.append(f"v.{column} IN ({', '.join(map(str, values)) or '-1'})")
        keys, source = {"line": "v.rank", "block": "v.step"}, f"{rows.view(signal)} AS v"
        query = cell_query(keys, {"": f"v.{quoted(op)}"}, source, " AND ".join(conditions))
        found = fetched(rows.connection, query)
    with_numbers = set(found["line"].tolist())
    lines = np.array([rank for rank in ranks if rank in with_numbers], dtype=np.int64)
    order = np.argsort(lines)
    places = order[np.searchsorted(lines, found["line"], sorter=order)] if len(lines) else found["line"]
    return picture(lines.tolist(), {**found, "line": places}, columns)


def same_row(row: SurveyRow) -> str:
    """Return the SQL condition of a row, its pipeline stage left out."""
    return f"v.name = {literal(row.name)} AND coalesce(v.vpp_stage, 0) = {row.vpp_stage}"


def _numbers(level: Level, span: Span) -> int:
    """Return how many numbers the files have in a span, with those in columns of the level that it begins or ends."""
    chosen = _chosen(level, span)
    return int(level.cells["count"][:, chosen].sum(dtype=np.int64))


def _chosen(level: Level, span: Span) -> slice:
    low = int(np.searchsorted(level.blocks, span.first // level.width))
    high = int(np.searchsorted(level.blocks, span.last // level.width, "right"))
    return slice(low, high)


def _from_level(level: Level, span: Span, columns: int) -> Picture:
    chosen = _chosen(level, span)
    blocks = level.blocks[chosen]
    steps = [(block * level.width, (block + 1) * level.width - 1) for block in blocks]
    lines = np.arange(len(level.rows))
    cells = level.cells.take(lines, np.arange(chosen.start, chosen.stop))
    return narrowed([], steps, cells, columns)


def _from_rows(
    reader: RunReader, level: Level, op: str, span: Span, columns: int, rank: int | None, width: int
) -> Picture:
    listing = reader.listing()
    directories = listing.run.directories
    own = [n for n, directory in enumerate(directories) if rank is None or directory.rank == rank]
    ranks = None if rank is None else [rank]
    known = {row: n for n, row in enumerate(level.rows)}
    with reader.rows([level.signal], span.first, span.last, ranks) as rows:
        if not (own and level.signal in rows.signals and op in rows.numbers(level.signal)):
            return Picture([], [], CellArrays.of(len(level.rows), 0), True)
        spans = dict.fromkeys(own, (span.first, span.last + 1))
        found = with_lines(rows, row_cells(rows, level.signal, op, width, spans), known)[1]
    inside = found["line"] < len(level.rows)  # a row that has come since is in the next picture
    return picture(level.rows, {name: array[inside] for name, array in found.items()}, columns, width)


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
