"""Heatmaps: rows or ranks of a signal over steps, as single steps where there is room for them, else from levels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from probe.core.analysis.pictures.cells import CellArrays, Picture, Span, cell_query, fetched, narrowed, picture
from probe.core.analysis.pictures.survey import SurveyRow
from probe.core.storage.sql import literal, quoted
from probe.view.levels import STEPS, Level, LevelStore, row_cells, with_lines
from probe.view.row_names import row_names
from probe.view.run_reader import RunReader

MOST_COLUMNS = 4096
"""Columns of a picture at most."""
MOST_RAW = 500_000
"""Rows of files that are read for a picture at most; beyond them it is made from levels."""
FEW_RANKS = 64
"""Ranks that a query names one by one; of more all are read."""


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
    directories, few = names.directories_of(wanted), ranks if len(ranks) <= FEW_RANKS else None
    with reader.rows([signal], span.first, span.last, few) as rows:
        if signal not in rows.signals or op not in rows.numbers(signal):
            return Picture([], [], CellArrays.of(0, 0), True)
        conditions = [same_row(wanted), span.sql()]
        for column, values in (("directory", directories), ("rank", few)):
            if values is not None:
                conditions.append(f"v.{column} IN ({', '.join(map(str, values)) or '-1'})")
        keys, source = {"line": "v.rank", "block": "v.step"}, f"{rows.view(signal)} AS v"
        found = fetched(rows.connection, cell_query(keys, f"v.{quoted(op)}", source, " AND ".join(conditions)))
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
