"""Tables of a log: a row of names, and below it rows of numbers, one a step or an epoch."""

from __future__ import annotations

import re
from collections.abc import Iterator

from probe.services.logs.metrics import TIMES, Metrics, put_entry
from probe.services.logs.names import COUNTERS, ours

Columns = dict[int, str]
"""Names of columns by where they begin in their row."""

FEWEST, MOST = 3, 32
"""Smallest and largest number of columns."""
NAME = re.compile(r"[A-Za-z#][\w/ .@:()%#-]{0,40}")
NUMBER = re.compile(
    r"\[?([-+]?[\d.]{1,24}(?:e[-+]?\d{1,3})?|[-+]?nan|[-+]?inf)\]?(?:/(\d{1,9}))?(?: ?([mu]?s|[KMGT]i?B?))?"
    r"(?: \([\d.]{1,8}%\))?",
    re.IGNORECASE,
)
OF_HEADS = ("loss", "epoch", "step", "batch", "iter")
"""Parts of names of which the head of a table has one."""
COMMENT = re.compile(r"^#\s{1,8}(?=\w)")
"""Sign of a comment before a head."""
CELLS = {sign: re.compile(rf"(?:^|(?<=[{sign}]))[^{sign}]*") for sign in "|\t,"} | {
    "  ": re.compile(r"\S+(?: \S+)*"), " ": re.compile(r"\S+"),
}  # fmt: skip
"""Cell of a row by what separates it from the next."""
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
    if not any(word in low for word in OF_HEADS):
        return None
    cells = next((cells for cells in _cells(COMMENT.sub("", text)) if _are_names(cells)), {})
    columns = {at: COLUMNS.get(name := ASIDE.sub("", cell), name).rstrip(".") for at, cell in cells.items()}
    known = {ours(name) for name in columns.values()}
    return columns if known & COUNTERS and (len(known) >= FEWEST or len(cells) > FEWEST) else None


def _are_names(cells: Columns) -> bool:
    twice = any(len(COUNTERS.intersection(map(ours, cell.split()))) > 1 for cell in cells.values())
    return FEWEST <= len(cells) <= MOST and not twice and all(map(NAME.fullmatch, cells.values()))


def row_of(text: str, columns: Columns) -> Metrics:
    """Return the numbers of a row below ``columns`` under our names; empty if it is none of their rows.

    Where cells are empty, the others must begin below their columns.
    """
    metrics: Metrics = {}
    cells = next(filter(None, (_below(columns, cells) for cells in _cells(BAR.sub("", text, count=1)))), [])
    found = [(name, NUMBER.fullmatch(cell)) for name, cell in cells]
    numbers = [name for name, number in found if number]
    if 2 * len(numbers) < len(cells) or COUNTERS.isdisjoint(map(ours, numbers)):
        return metrics
    for name, number in found:
        if number is not None:
            text, second, unit = number.groups(default="")
            whole = "step time" if unit in TIMES and ours(name) in COUNTERS else name
            put_entry(metrics, whole + (f"({unit})" if unit else ""), text.encode(), second.encode(), "")
    return metrics


def _below(columns: Columns, cells: Columns) -> list[tuple[str, str]]:
    """Return the cells of a row with the names of their columns; empty if it is none of the rows."""
    if len(cells) == len(columns):
        return list(zip(columns.values(), cells.values(), strict=True))
    named = [(columns.get(at, columns.get(at - 1, "")), cell) for at, cell in cells.items()]
    return named if len(cells) >= FEWEST and all(name for name, _ in named) else []


def _cells(text: str) -> Iterator[dict[int, str]]:
    """Yield the cells of a row, by where they begin, by each separator that it may have: a frame or sign, several
    blanks, a comma, one blank."""
    text = SOURCE.sub("", text.translate(FRAMES).strip())
    framed = [sign for sign in "|\t" if sign in text][:1]
    for separator in framed or ("  ", ",", " "):
        if separator in text:
            yield {found.start(): found[0].strip() for found in CELLS[separator].finditer(text.strip("|"))}
