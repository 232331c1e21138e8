"""Tables of a log: a row of names, and below it rows of numbers, one a step or an epoch."""

from __future__ import annotations

import re

from probe.services.logs.metrics import Metrics, put_entry
from probe.services.logs.names import COUNTERS, ours

Columns = tuple[str, ...]

FEWEST, MOST = 3, 32
"""Smallest and largest number of columns."""
NAME = re.compile(r"[A-Za-z#][\w/ .@:()%#-]{0,40}")
NUMBER = re.compile(
    r"([-+]?[\d.]{1,24}(?:e[-+]?\d{1,3})?|[-+]?nan|[-+]?inf)(?:/(\d{1,9}))?([KMGT]i?B?)?", re.IGNORECASE
)
BAR = re.compile(r":?\s{1,4}\d{1,3}%.{0,4096}")
"""Progress bar behind a row."""
FRAMES = str.maketrans("│┃║", "|||")
OF_DETECTION = {"box": "box_loss", "obj": "obj_loss", "cls": "cls_loss", "dfl": "dfl_loss"}
"""Names of columns that are losses without saying so."""


def columns_of(text: str) -> Columns | None:
    """Return the names of a table's columns if ``text`` is such a row: some of them are numbers of a training."""
    low = text[:512].lower()
    if "loss" not in low and "epoch" not in low and "step" not in low:
        return None
    cells = _cells(text)
    if not FEWEST <= len(cells) <= MOST or not all(map(NAME.fullmatch, cells)):
        return None
    known = {ours(cell) for cell in cells}
    return tuple(cells) if known & COUNTERS and len(known) >= FEWEST else None


def row_of(text: str, columns: Columns) -> Metrics:
    """Return the numbers of a row below ``columns`` under our names; empty if it is none of their rows."""
    cells = _cells(BAR.sub("", text, count=1), within=True)
    metrics: Metrics = {}
    found = [NUMBER.fullmatch(cell) for cell in cells]
    if len(cells) != len(columns) or found[0] is None or 2 * sum(map(bool, found)) < len(cells):
        return metrics
    for name, number in zip(columns, found, strict=True):
        if number is not None:
            text, second, unit = number.groups(default="")
            whole = OF_DETECTION.get(name, name) + (f"({unit})" if unit else "")
            put_entry(metrics, whole, text.encode(), second.encode(), "")
    return metrics


def _cells(text: str, within: bool = False) -> list[str]:
    """Return the cells of a row; those without a frame or separator are columns of blanks.

    Args:
        text: The row.
        within: Whether it is one of numbers, which have no blanks in them.
    """
    text = text.translate(FRAMES).strip()
    for separator in "|\t,":
        if separator in text:
            return [cell.strip() for cell in text.strip("|").split(separator)]
    return text.split() if within else re.split(r" {2,}", text)
