"""Rows that a finding rests on, looked up in the files again."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite, nan
from pathlib import Path
from typing import Any, NamedTuple

from probe.core.analysis.diagnosis.located_finding import Located
from probe.core.language import message
from probe.core.moments import OPS
from probe.core.records import Key
from probe.core.storage.duckdb_reader import Rows
from probe.core.storage.layout import MICRO_STEP, NAME, STAGE, STEP, cell_name, is_number
from probe.core.storage.sql import quoted
from probe.core.storage.table_files import TableFile

BEFORE = 2
"""Number of earlier steps that are shown with a value."""


class Evidence(NamedTuple):
    """File and values that show a finding."""

    file: str
    """Rank's directory and the file in it; empty if no file has the row."""
    op: str
    values: tuple[tuple[int, float], ...]
    """Steps and values of the same row, the finding's own last."""
    inputs: str = ""
    """Sentence about the module's inputs and parameters; empty if unknown."""


class _Row(NamedTuple):
    step: int
    name: str
    numbers: dict[str, float]


def evidence(rows: Rows, located: Located) -> Evidence:
    """Look up a finding, and the steps before it, in the files."""
    finding, step = located.finding, located.began
    files = _files(rows, finding.signal, located.rank, step)
    name = cell_name(finding.key)
    history = [row for _, file in files for row in _read(rows, file, finding.key, "name = ?", name)]
    history = sorted((row for row in history if row.step <= step), key=lambda row: row.step)[-BEFORE - 1 :]
    if not history or history[-1].step != step:
        return Evidence("", finding.op, ())
    op = finding.op if finding.op in history[-1].numbers else next(iter(history[-1].numbers), "")
    n, last = files[-1]
    path, directory = rows.original(last), rows.directories[n].path
    values = tuple((row.step, row.numbers.get(op, nan)) for row in history)
    return Evidence(str(Path(directory.name) / path.name), op, values, _inputs(rows, located))


def _files(rows: Rows, signal: str, rank: int, step: int) -> list[tuple[int, TableFile]]:
    """Last files of a rank that may hold a step and those before it, each with the index of its directory."""
    numbered: list[tuple[int, TableFile]] = []
    for n, directory in enumerate(rows.directories):
        if signal in rows.files and directory.rank == rank and (directory.until is None or step < directory.until):
            numbered += [(n, file) for file in rows.files_of(signal, n) if file.first <= step]
    return numbered[-BEFORE - 1 :]


def _read(rows: Rows, file: TableFile, key: Key, condition: str, name: str) -> Iterator[_Row]:
    """Rows of a file with the micro step, call and stage of ``key``, where ``condition`` selects by ``name``."""
    asked = name.encode("utf-8", "backslashreplace").decode()  # as files have names that are no valid text
    source = rows.source([file])
    columns = file.columns or rows.columns(source)
    numbers = [column for column in columns if is_number(column)]
    conditions = {MICRO_STEP: key.micro_step, STAGE: key.stage}
    same = [f"coalesce({column}, 0) = {value}" for column, value in conditions.items() if column in columns]
    selected = ", ".join(quoted(column) for column in (STEP, NAME, *numbers))
    where = " AND ".join([*same, condition])
    query = f"SELECT {selected} FROM {source} WHERE {where}"  # noqa: S608 - names are quoted as texts
    for step, row_name, *cells in rows.connection.execute(query, [asked]).fetchall():
        yield _Row(
            step, row_name or "", {op: nan if cell is None else cell for op, cell in zip(numbers, cells, strict=True)}
        )


def _inputs(rows: Rows, located: Located) -> str:
    """Sentence for a module whose output is bad: whether its inputs and its own parameters were finite."""
    finding = located.finding
    if finding.signal != "actv" or not finding.key.part.startswith("output"):
        return ""
    module = finding.key.name
    inputs = _are_finite(rows, located, "actv", f"{module}.input")
    if inputs is None:
        return ""
    are_finite = _are_finite(rows, located, "param_origin", f"{module}." if module else "")
    if inputs and are_finite:
        return message("the module's inputs were finite, and so were its parameters")
    return message("the module's inputs were finite" if inputs else "the module's inputs were not finite either")


def _are_finite(rows: Rows, located: Located, signal: str, beginning: str) -> bool | None:
    """Return whether all numbers of such rows at the finding's step are finite; None if there are none."""
    key = located.finding.key if signal == "actv" else Key("", stage=located.finding.key.stage)
    condition = f"step = {int(located.began)} AND starts_with(name, ?)"
    files = _files(rows, signal, located.rank, located.began)[-1:]
    records: list[Any] = [row for _, file in files for row in _read(rows, file, key, condition, beginning)]
    values = [value for row in records for op, value in row.numbers.items() if op in OPS and op != "id"]
    return all(isfinite(value) for value in values) if values else None
