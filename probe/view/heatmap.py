"""Heatmaps: rows or ranks of a signal over steps, as single steps where there is room for them, else from levels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from probe.core.analysis.pictures.survey import SurveyRow
from probe.core.storage.duckdb_reader import Rows
from probe.core.storage.sql import literal, quoted
from probe.view.cells import KINDS, CellArrays, CellQuery, fetched
from probe.view.levels import STEPS, Level, LevelStore, row_cells, with_lines
from probe.view.row_names import RowNames, row_names
from probe.view.run_reader import RunReader

MOST_COLUMNS = 4096
"""Columns of a picture at most."""
MOST_RAW = 500_000
"""Rows of files that are read for a picture at most; beyond them it is made from levels."""
SENT = ("minimum", "maximum", "nan", "inf", "rank")
"""Arrays that a picture has."""


class Picture(NamedTuple):
    """Cells with their lines and columns."""

    lines: list[Any]
    """Labels of rows, or ranks."""
    steps: list[tuple[int, int]]
    """First and last step of each column."""
    cells: CellArrays
    exact: bool
    """True if each column is one step."""


class Span(NamedTuple):
    """Steps that are asked for, both included."""

    first: int
    last: int

    def sql(self) -> str:
        """Return an SQL condition of ``v.step``."""
        return f"v.step BETWEEN {self.first} AND {self.last}"


def heatmap_of_rows(
    reader: RunReader, store: LevelStore, signal: str, op: str, span: Span, columns: int, rank: int | None
) -> tuple[Picture, RowNames]:
    """Return a picture with a line for each row of a signal.

    Args:
        columns: columns at most.
        rank: the rank that is shown; None for all ranks together.

    Raises:
        RunGone, ValueError: as :meth:`RunReader.rows`.
    """
    columns = max(1, min(columns, MOST_COLUMNS))
    level = store.level(signal, op)
    names = row_names(reader, signal, level.rows)
    order = names.order(level.rows)
    number = _numbers(level, span) // (1 if rank is None else len(reader.listing().run.ranks))
    if rank is None and number > MOST_RAW:
        picture = _from_level(level, span, columns)
    else:
        picture = _from_rows(reader, level, op, span, columns, rank, 1 if number <= MOST_RAW else STEPS)
    lines = [names.label(level.rows[n]) for n in order]
    every = np.arange(picture.cells.shape[1])
    return picture._replace(lines=lines, cells=picture.cells.take(order, every)), names


def heatmap_of_ranks(
    reader: RunReader, signal: str, op: str, span: Span, columns: int, row: str, order: Sequence[int]
) -> tuple[Picture, RowNames]:
    """Return a picture with a line for each rank that has a row, in ``order``.

    Raises:
        RunGone: as :meth:`RunReader.rows`.
        ValueError: likewise, and if there is no such row.
    """
    names = row_names(reader, signal)
    found = rank_cells(reader, names, signal, op, span, row, None)
    ranks = np.unique(found["line"])
    steps = np.unique(found["block"])
    cells = CellArrays.of(len(ranks), len(steps))
    cells.merge(np.searchsorted(ranks, found["line"]), np.searchsorted(steps, found["block"]), found)
    picture = _grouped([(s, s) for s in steps.tolist()], cells, max(1, min(columns, MOST_COLUMNS)))
    places = {rank: n for n, rank in enumerate(order)}
    lines = sorted(range(len(ranks)), key=lambda n: places[int(ranks[n])])
    cells = picture.cells.take(lines, np.arange(picture.cells.shape[1]))
    return picture._replace(lines=ranks[lines].tolist(), cells=cells), names


def rank_cells(
    reader: RunReader, names: RowNames, signal: str, op: str, span: Span, row: str, ranks: Sequence[int] | None
) -> dict[str, Any]:
    """Return the cells of one row with the rank as ``line`` and the step as ``block``.

    Args:
        row: label of the row.
        ranks: ranks that are read; None for all.

    Raises:
        ValueError: if there is no such row.
    """
    wanted = names.row(row)
    own = names.directories_of(wanted)
    with reader.rows([signal], span.first, span.last, ranks) as rows:
        if signal not in rows.signals or op not in rows.numbers(signal):
            return {name: np.zeros(0, dtype=kind) for name, kind in {"line": "<i8", "block": "<i8", **KINDS}.items()}
        conditions = [same_row(wanted), span.sql()]
        if own is not None:
            conditions.append(f"v.directory IN ({', '.join(map(str, own)) or '-1'})")
        if ranks is not None:
            conditions.append(f"v.rank IN ({', '.join(map(str, ranks)) or '-1'})")
        source, where = f"{rows.view(signal)} AS v", " AND ".join(conditions)
        return _single(rows, op, source, where) or _several(rows, op, source, where)


def _single(rows: Rows, op: str, source: str, where: str) -> dict[str, Any] | None:
    """Return the cells of a row that no rank has twice in a step; None if one has."""
    query = f"SELECT v.rank AS line, v.step AS block, {quoted(op)} AS x FROM {source} WHERE {where} AND {quoted(op)} IS NOT NULL"  # noqa: S608, E501
    found: dict[str, Any] = rows.connection.execute(query).fetchnumpy()
    line, block, x = (np.asarray(found[name]) for name in ("line", "block", "x"))
    line, block, x = line.astype("<i8"), block.astype("<i8"), x.astype("<f8")
    if len(np.unique(line << 40 | block)) < len(line):
        return None
    numbers = {"minimum": x, "maximum": x, "nan": np.isnan(x), "inf": np.isinf(x), "rank": line}
    numbers["count"] = np.ones(len(x))
    return {"line": line, "block": block, **{name: numbers[name].astype(kind) for name, kind in KINDS.items()}}


def _several(rows: Rows, op: str, source: str, where: str) -> dict[str, Any]:
    """Return the cells of a row that ranks have for each micro step."""
    CellQuery({"line": "v.rank", "block": "v.step"}, op, source, where).make(rows.connection, "line_cells")
    return fetched(rows.connection, f"SELECT {', '.join(('line', 'block', *KINDS))} FROM line_cells")  # noqa: S608


def same_row(row: SurveyRow) -> str:
    """Return the SQL condition of a row, its pipeline stage left out."""
    return f"v.name = {literal(row.name)} AND coalesce(v.vpp_stage, 0) = {row.vpp_stage}"


def _numbers(level: Level, span: Span) -> int:
    """Return how many numbers the files have in a span, with those in columns of the level that it begins or ends."""
    chosen = _chosen(level, span)
    return int(level.cells.count[:, chosen].sum(dtype=np.int64))


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
    return _grouped(steps, cells, columns)


def _from_rows(
    reader: RunReader, level: Level, op: str, span: Span, columns: int, rank: int | None, width: int
) -> Picture:
    listing = reader.listing()
    directories = listing.run.directories
    own = [n for n, directory in enumerate(directories) if rank is None or directory.rank == rank]
    ranks = None if rank is None else [rank]
    known = {row: n for n, row in enumerate(level.rows)}
    with reader.rows([level.signal], span.first, span.last, ranks) as rows:
        found: dict[str, Any] | None = None
        if own and level.signal in rows.signals and op in rows.numbers(level.signal):
            found = _cells_of(rows, level, op, span, own, known, width)
    if found is None or not len(found["block"]):
        return Picture([], [], CellArrays.of(len(level.rows), 0), True)
    inside = found["line"] < len(level.rows)  # a row that has come since is in the next picture
    found = {name: array[inside] for name, array in found.items()}
    steps = np.unique(found["block"])
    cells = CellArrays.of(len(level.rows), len(steps))
    cells.merge(found["line"], np.searchsorted(steps, found["block"]), found)
    return _grouped([(s * width, s * width + width - 1) for s in steps.tolist()], cells, columns)


def _cells_of(
    rows: Rows, level: Level, op: str, span: Span, own: Sequence[int], known: dict[Any, int], width: int
) -> dict[str, Any]:
    spans = dict.fromkeys(own, (span.first, span.last + 1))
    return with_lines(rows, row_cells(rows, level.signal, op, width, spans), known)[1]


def _grouped(steps: list[tuple[int, int]], cells: CellArrays, columns: int) -> Picture:
    """Return a picture of at most ``columns`` columns, each of as many steps."""
    number = -(-len(steps) // columns) if steps else 1
    if number > 1:
        cells = cells.grouped(number)
        steps = [(own[0][0], own[-1][1]) for n in range(0, len(steps), number) if (own := steps[n : n + number])]
    return Picture([], steps, cells, number == 1 and all(first == last for first, last in steps))
