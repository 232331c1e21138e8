"""Answers of queries as CSV and JSON, with all digits of each number; NaN and the infinities are ``nan, inf, -inf``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, TextIO

from probe.core.messages import printable, printable_json
from probe.core.storage.layout import csv_cell
from probe.core.storage.run_directory import plain


def cell(value: Any) -> str:
    """Return a value as text: empty for NULL, JSON for lists and structures."""
    if value is None:
        return ""
    if isinstance(value, bool | list | tuple | Mapping):
        return json.dumps(_jsonable(value), ensure_ascii=False)
    return repr(value) if isinstance(value, float) else str(value)


def write_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]], file: TextIO, escaped: bool = False) -> None:
    """Write rows as CSV with a header (RFC 4180, lines that end with LF). An empty text is ``""``, NULL is nothing.

    Args:
        escaped: whether control characters are escaped, for a terminal.
    """

    def line(cells: Iterable[Any]) -> str:
        texts = ('""' if text == "" else csv_cell(printable(cell(text)) if escaped else cell(text)) for text in cells)
        return ",".join(texts) + "\n"

    file.write(line(columns))
    for row in rows:
        file.write(line(row))


def write_json(columns: Sequence[str], rows: Iterable[Sequence[Any]], file: TextIO) -> None:
    """Write rows as one JSON array of objects, an object a line, control characters escaped. NaN and the infinities,
    which JSON lacks, are texts, and so are decimal numbers with digits after the point."""
    before = "["
    for row in rows:
        cells = {name: _jsonable(value) for name, value in zip(columns, row, strict=True)}
        file.write(f"{before}\n{printable_json(json.dumps(cells))}")
        before = ","
    file.write("[]\n" if before == "[" else "\n]\n")


def _jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _jsonable(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    if isinstance(value, Decimal) and value == value.to_integral_value():
        return int(value)
    return plain(value)
