"""Tables of a log: a row of names, and below it rows of numbers, one a step or an epoch."""

from __future__ import annotations

import re
from collections.abc import Iterator

from probe.services.logs.metrics import TIMES, Metrics, put_entry
from probe.services.logs.names import COUNTERS, ours

Columns = tuple[str, ...]

FEWEST, MOST = 3, 32
"""Smallest and largest number of columns."""
NAME = re.compile(r"[A-Za-z#][\w/ .@:()%#-]{0,40}")
NUMBER = re.compile(
    r"([-+]?[\d.]{1,24}(?:e[-+]?\d{1,3})?|[-+]?nan|[-+]?inf)(?:/(\d{1,9}))?(?: ?([mu]?s|[KMGT]i?B?))?"
    r"(?: \([\d.]{1,8}%\))?",
    re.IGNORECASE,
)
ASIDE = re.compile(r" \([^)]{1,16}\)$")
"""Unit or explanation behind a name."""
SOURCE = re.compile(r"\s{2,}\w{1,40}\.py:\d{1,5}$")
"""Source of a message, which rich writes behind it."""
BAR = re.compile(r":?\s{1,4}\d{1,3}%.{0,4096}")
"""Progress bar behind a row."""
FRAMES = str.maketrans("│┃║", "|||")
COLUMNS = {"box": "box_loss", "obj": "obj_loss", "cls": "cls_loss", "dfl": "dfl_loss", "E": "epoch", "#": "step"}
"""Names of columns that say what they are in a table alone."""


def columns_of(text: str) -> Columns | None:
    """Return the names of a table's columns if ``text`` is such a row: some of them are numbers of a training."""
    low = text[:512].lower()
    if "loss" not in low and "epoch" not in low and "step" not in low:
        return None
    cells = next((cells for cells in _cells(text) if len(cells) >= FEWEST), [])
    if len(cells) > MOST or not all(map(NAME.fullmatch, cells)):
        return None
    columns = tuple(COLUMNS.get(name := ASIDE.sub("", cell), name) for cell in cells)
    known = {ours(name) for name in columns}
    return columns if known & COUNTERS and len(known) >= FEWEST else None


def row_of(text: str, columns: Columns) -> Metrics:
    """Return the numbers of a row below ``columns`` under our names; empty if it is none of their rows."""
    metrics: Metrics = {}
    cells = next((cells for cells in _cells(BAR.sub("", text, count=1)) if len(cells) == len(columns)), [])
    found = [NUMBER.fullmatch(cell) for cell in cells]
    if not found or found[0] is None or 2 * sum(map(bool, found)) < len(cells):
        return metrics
    for name, number in zip(columns, found, strict=True):
        if number is not None:
            text, second, unit = number.groups(default="")
            whole = "step time" if unit in TIMES and ours(name) in COUNTERS else name
            put_entry(metrics, whole + (f"({unit})" if unit else ""), text.encode(), second.encode(), "")
    return metrics


def _cells(text: str) -> Iterator[list[str]]:
    """Yield the cells of a row by each separator that it may have: a frame or sign, several blanks, one blank."""
    text = SOURCE.sub("", text.translate(FRAMES).strip())
    separator = next((sign for sign in "|\t" if sign in text), "")
    if separator:
        yield [cell.strip() for cell in text.strip("|").split(separator)]
        return
    yield re.split(r" {2,}", text)
    if "," in text:
        yield [cell.strip() for cell in text.split(",")]
    yield text.split()
