"""Rows of CSV as text: the parser of all files that are read without DuckDB."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from probe.core.language import message


class CsvRow(NamedTuple):
    """A row, or lines that cannot be read."""

    line: int
    """Number of its first line, from 1."""
    lines: list[str]
    """Lines of the row, with their line breaks; several if a cell has line breaks."""
    cells: list[str]
    """Empty for an empty line, and if ``wrong`` is set."""
    wrong: str = ""
    """The defect of lines that cannot be read; else empty."""


def rows(lines: Iterable[str]) -> Iterator[CsvRow]:
    """Yield the rows of ``lines``; after lines that cannot be read, continue with the next line."""
    source = _Lines(lines)
    parser = csv.reader(source, strict=True)
    ended = False
    while not ended:
        begin, cells, wrong = source.number + 1, None, ""
        try:
            cells = next(parser, None)
            ended = cells is None
        except csv.Error as error:
            wrong = _wrong(source.taken, error)
        if source.taken:
            yield CsvRow(begin, source.taken, cells or [], wrong)
            source.taken = []


class _Lines:
    """Lines, and the ones that the parser has read for its latest row."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = lines
        self.number = 0
        self.taken: list[str] = []

    def __iter__(self) -> Iterator[str]:
        for line in self._lines:
            self.number += 1
            self.taken.append(line)
            yield line


def _wrong(lines: list[str], error: csv.Error) -> str:
    if "\r" in lines[0].rstrip("\r\n"):
        return message("expected line breaks at the end of lines, got CR within one")
    if sum(map(len, lines)) > csv.field_size_limit():
        return message("expected cells of {most} characters at most; {error}", most=csv.field_size_limit(), error=error)
    return message("expected cells with paired quotes; {error}", error=error)
