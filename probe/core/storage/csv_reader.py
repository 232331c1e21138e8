"""CSV files read by Python alone: slower than DuckDB, but there wherever training runs."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from probe.core.storage.directories import RankDirectory
from probe.core.storage.layout import INTEGERS, is_number, whole
from probe.core.storage.problems import Problems, left_out
from probe.core.storage.table_files import TableFile, tables

Convert = Callable[[str], Any]


class PlainRows:
    """The CSV files of ``directories``, as :func:`probe.core.storage.batches.steps` takes them."""

    def __init__(self, directories: Sequence[RankDirectory], problems: Problems) -> None:
        self.directories = tuple(directories)
        self.problems = problems
        self.files: dict[str, list[tuple[int, TableFile]]] = {}
        for n, directory in enumerate(self.directories):
            for file in tables(directory.path, problems):
                if file.format == "csv":
                    self.files.setdefault(file.signal, []).append((n, file))

    def read(
        self, files: Sequence[TableFile], first: int | None, last: int | None
    ) -> tuple[tuple[str, ...], Iterator[tuple[Any, ...]]]:
        """The columns of ``files``, which are alike, and their rows from step ``first`` to ``last``, in order."""
        return files[0].columns, self._rows(files, first, last)

    def _rows(self, files: Sequence[TableFile], first: int | None, last: int | None) -> Iterator[tuple[Any, ...]]:
        at = files[0].columns.index("step")
        for file in files:
            for row in self._rows_of(file):
                if (first is None or row[at] >= first) and (last is None or row[at] <= last):
                    yield row

    def _rows_of(self, file: TableFile) -> Iterator[tuple[Any, ...]]:
        convert = [_convert(column) for column in file.columns]
        data = file.path.read_bytes()
        whole = data[: len(data) - file.torn].decode("utf-8", "replace")
        lines = csv.reader(io.StringIO(whole, newline=""), strict=True)
        next(lines, None)
        begin, ended = lines.line_num + 1, False
        while not ended:
            try:
                cells = next(lines)
                yield tuple(to(cell) for to, cell in zip(convert, cells, strict=True))
            except StopIteration:
                ended = True
            except (csv.Error, ValueError) as error:  # the reader goes on with the line after it
                self.problems.add(file.path, f"{error}: {left_out(lines.line_num - begin)}", begin)
            begin = lines.line_num + 1


def _convert(column: str) -> Convert:
    if column in INTEGERS:
        return partial(whole, column)
    return _number if is_number(column) else str


def _number(cell: str) -> float | None:
    """None for no value, as DuckDB reads it."""
    return float(cell) if cell else None
