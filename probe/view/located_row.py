"""One row: all its numbers, and where in which file it is written."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from probe.core.storage.duckdb_reader import Rows
from probe.core.storage.files import opened
from probe.core.storage.layout import CALL, COVERAGE, CSV, DTYPE, MICRO_STEP, SHAPE, csv_cell, line_beginning
from probe.core.storage.sql import quoted
from probe.core.storage.table_files import TableFile
from probe.view.heatmap import same_row
from probe.view.row_names import RowNames, row_names
from probe.view.run_reader import RunReader

BLOCK = 1 << 20
"""Bytes that are searched at a time."""


def located_row(
    reader: RunReader, signal: str, row: str, rank: int, step: int, micro_step: int | None
) -> dict[str, Any] | None:
    """Return the numbers, the file and the line of a row; None if there is none.

    Args:
        row: label of the row.
        micro_step: None for the first one.

    Raises:
        RunGone, ValueError: as :meth:`RunReader.rows`.
    """
    names = row_names(reader, signal)
    wanted = names.row(row)
    with reader.rows([signal], step, step, [rank]) as rows:
        if signal not in rows.signals:
            return None
        found = list(_found(rows, signal, names, row, rank, step))
        micro_steps = sorted({each[MICRO_STEP] for each in found})
        wanted_step = micro_step if micro_step is not None or not found else micro_steps[0]
        same = [each for each in found if each[MICRO_STEP] == wanted_step]
        if not same:
            return None
        call = min(each[CALL] for each in same)
        before = max(n for n, each in enumerate(same) if each[CALL] == call)  # of rows that come twice, the later one
        chosen = same[before]
        places = _places(rows, signal, chosen, wanted.vpp_stage, wanted.name, step)
        file, line = [("", None), *islice(places, before + 1)][-1]
        values = {number: chosen[number] for number in rows.numbers(signal) if chosen[number] is not None}
    previous, after = _neighbours(reader, signal, names, row, rank, step)
    return {
        "signal": signal,
        "row": row,
        "rank": rank,
        "step": step,
        MICRO_STEP: chosen[MICRO_STEP],
        "micro_steps": micro_steps,
        "values": values,
        "file": file,
        "line": line,
        "shape": chosen[SHAPE] or "",
        "dtype": chosen[DTYPE] or "",
        "coverage": chosen[COVERAGE],
        "previous_step": previous,
        "next_step": after,
    }


def _found(rows: Rows, signal: str, names: RowNames, row: str, rank: int, step: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of all micro steps, in the order of the file."""
    numbers = [*rows.numbers(signal)]
    columns = ["directory", MICRO_STEP, CALL, SHAPE, DTYPE, COVERAGE, *numbers]
    where = f"{same_row(names.row(row))} AND v.rank = {rank} AND v.step = {step}"
    query = (
        f"SELECT {', '.join(map(quoted, columns))} FROM {rows.view(signal)} AS v "  # noqa: S608 - quoted
        f"WHERE {where}"
    )
    for cells in rows.connection.execute(query).fetchall():
        yield dict(zip(columns, cells, strict=True))


def _neighbours(
    reader: RunReader, signal: str, names: RowNames, row: str, rank: int, step: int
) -> tuple[int | None, int | None]:
    """Return the sampled steps before and after a step, as far as they are in the same file or in those beside it."""
    files = [file for _, file in reader.listing().files.get(signal, ())]
    widest = max((min(file.last, 1 << 31) - file.first + 1 for file in files), default=1)
    with reader.rows([signal], step - widest, step + widest, [rank]) as rows:
        if signal not in rows.signals:
            return None, None
        where = f"{same_row(names.row(row))} AND v.rank = {rank}"
        query = (
            f"SELECT max(step) FILTER (step < {step}), min(step) FILTER (step > {step}) "  # noqa: S608 - quoted
            f"FROM {rows.view(signal)} AS v WHERE {where}"
        )
        before, after = rows.connection.execute(query).fetchone()
    return before, after


def _places(
    rows: Rows, signal: str, row: dict[str, Any], stage: int, name: str, step: int
) -> Iterator[tuple[str, int | None]]:
    """Yield the file and, if it is text, the line of each row of the same name, step and micro step."""
    for file in rows.files_of(signal, row["directory"]):
        if not file.first <= step <= file.last:
            continue
        original = rows.original(file)
        shown = f"{original.parent.name}/{original.name}"
        if file.format != CSV:
            if _has_step(rows, file, step):
                yield shown, None
            continue
        micro = str(row[MICRO_STEP]) if MICRO_STEP in file.columns else ""
        beginning = line_beginning(str(stage), csv_cell(name), str(step), micro)
        for line in _lines(file._replace(path=original), beginning.encode("utf-8", "backslashreplace")):
            yield shown, line


def _has_step(rows: Rows, file: TableFile, step: int) -> bool:
    query = f"SELECT 1 FROM {rows.source([file])} WHERE step = {step} LIMIT 1"  # noqa: S608 - a number
    return bool(rows.connection.execute(query).fetchall())


def _lines(file: TableFile, beginning: bytes) -> Iterator[int]:
    """Yield the numbers of the lines that begin so, counted from 1."""
    number, rest = 1, b"\n"  # a line break stands before the first line
    with opened(file.path) as source:
        while data := source.read(BLOCK):
            text, begin = rest + data, 0
            while (at := text.find(b"\n" + beginning, begin)) >= 0:
                yield number + text.count(b"\n", 1, at + 1)
                begin = at + 1
            keep = max(text.rfind(b"\n"), begin)
            number += text.count(b"\n", 1, keep + 1)
            rest = text[keep:]
