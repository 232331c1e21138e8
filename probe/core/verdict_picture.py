"""Picture of the rows around the place that a verdict names, over the last recorded steps, in characters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import NamedTuple, TypeVar
from urllib.parse import urlencode

from probe.core.language import message
from probe.core.messages import printable
from probe.core.storage.csv_rows import rows
from probe.core.storage.layout import CSV, NAME, STEP, table_name
from probe.core.verdict import Verdict

SIGNALS = ("actv", "grad_unreduced", "grad_reduced", "actv_grad", "param_updated", "param_origin")
"""Signals that a picture may show, the preferred one first."""
VALUES = ("norm", "rms", "max", "mean", "nans")
"""Columns whose values a picture may show, the preferred one first."""
BEFORE, AFTER = 7, 2
"""Most recorded steps before the first bad one, and after it."""
BESIDE = 2
"""Rows on either side of the one that is named."""
MOST_BYTES = 16 << 20
"""Larger files are not read: the program has ended, and its user waits."""
BLOCKS, LEVELS = "▁▂▃▄▅▆▇█", "12345678"
FLAT = 0.15
"""Difference of decimal logarithms below which the values of a row are drawn alike."""
MIDDLE = 3
SHORTEST, FEWEST = 20, 4
"""Characters of a name, and steps, that a narrow picture keeps if it can."""

RowValues = dict[int, float]
"""Values of a row by step."""
Cell = tuple[str, str, int, float]
"""Column, row, step and value."""
File = TypeVar("File")


class VerdictPicture(NamedTuple):
    """Rows in the order of execution, over recorded steps."""

    signal: str
    column: str
    since: int
    """First bad step."""
    steps: tuple[int, ...]
    rows: tuple[tuple[str, RowValues], ...]
    named: int
    """Index of the row that is named."""

    def lines(self, blocks: bool = True, width: int = 0) -> list[str]:
        """Return the picture as lines.

        Args:
            blocks: False for a terminal that has no block characters.
            width: most characters of a line: fewer steps are drawn, and of long names the end; 0 for no limit.
        """
        names = [f"{self.signal} {self.column}", *(printable(name) for name, _ in self.rows)]
        longest = max(map(len, names))
        cell = max(len("NaN"), *(len(str(step)) for step in self.steps)) + 1
        if width:
            longest = min(longest, max(SHORTEST, width - len("> ") - len(" |") - FEWEST * cell))
            fitted = self._around((width - len("> ") - len(" |") - longest) // cell)
        else:
            fitted = self
        title, *names = (_end_of(name, longest, "…" if blocks else "...") for name in names)
        lines = [f"  {title:<{longest}}{fitted._line([str(step) for step in fitted.steps], cell)}"]
        for number, (name, (_, values)) in enumerate(zip(names, self.rows, strict=True)):
            mark = ">" if number == self.named else " "
            lines.append(f"{mark} {name:<{longest}}{fitted._line(_drawn(values, fitted.steps, blocks), cell)}")
        return lines

    def _around(self, number: int) -> VerdictPicture:
        """Return the picture with ``number`` steps around the first bad one at most, two at least."""
        before, after = ([step for step in self.steps if (step < self.since) is early] for early in (True, False))
        while before and after and len(before) + len(after) > max(2, number):
            del (before if len(before) > len(after) else after)[0 if len(before) > len(after) else -1]
        return self._replace(steps=(*before, *after))

    def before(self) -> tuple[int, float] | None:
        """Return the last step before the first bad one with a value of the row that is named, and the value."""
        values = self.rows[self.named][1]
        step = max((step for step in values if step < self.since), default=None)
        return None if step is None else (step, values[step])

    def first_bad(self) -> tuple[int, float] | None:
        """Return the first step from the first bad one on with a value of the row that is named, and the value."""
        values = self.rows[self.named][1]
        step = min((step for step in values if step >= self.since), default=None)
        return None if step is None else (step, values[step])

    def _line(self, cells: Sequence[str], width: int) -> str:
        """Return cells side by side, with a line before the first bad step."""
        marks = ["" if step < self.since else " |" for step in self.steps]
        first = next((number for number, mark in enumerate(marks) if mark), len(marks))
        return "".join(f"{' |' if number == first else ''}{cell:>{width}}" for number, cell in enumerate(cells))


def card_lines(
    verdict: Verdict,
    picture: VerdictPicture | None,
    files: str,
    change: str = "",
    blocks: bool = True,
    width: int = 0,
) -> list[str]:
    """Return a verdict with its picture, and the command that opens the page at the place that is named.

    Args:
        files: folder of the run; empty if nothing is written.
        change: clause about a number before and after; empty for that of the row that the picture names.
        blocks: whether the terminal has block characters.
        width: columns for the picture; 0 for as many as it needs.
    """
    drawn = [] if picture is None else picture.lines(blocks, width)
    of_row = picture is not None and picture.column in verdict.evidence  # else its numbers are of something else
    lines = verdict.lines(change or (_change(picture) if of_row else ""), drawn)
    if not files:
        return lines
    place: dict[str, object] = {"rank": verdict.ranks[0]} if verdict.ranks else {}
    if picture is not None:
        name, _ = picture.rows[picture.named]
        step, _ = picture.first_bad() or (picture.since, 0.0)
        place |= {"signal": picture.signal, "op": picture.column, "row": name, "step": step}
    else:
        place |= verdict.cell()
    address = quote(f"{files}#{urlencode(place)}" if place else files)
    return [*lines, message("open: {command}", command=f"probe view {address}")]


def _change(picture: VerdictPicture | None) -> str:
    """Return a clause about the row that is named before and after; an empty text if either is unknown."""
    before = None if picture is None else picture.before()
    after = None if picture is None else picture.first_bad()
    if picture is None or before is None or after is None:
        return ""
    return message(
        "{op} of {row} ({signal}): {before:.4g} at step {earlier} -> {after:.4g} at step {step}",
        op=picture.column,
        row=picture.rows[picture.named][0],
        signal=picture.signal,
        before=before[1],
        earlier=before[0],
        after=after[1],
        step=after[0],
    )


def picture_of(directory: Path, verdict: Verdict) -> VerdictPicture | None:
    """Return the picture of a verdict from the CSV files of a rank; None if they show nothing of it.

    Raises:
        OSError, ValueError: if files cannot be read.
    """
    files: dict[str, list[tuple[int, Path]]] = {}
    for path in directory.iterdir():
        name = table_name(path.name)
        if name is not None and name.format == CSV:
            files.setdefault(name.signal, []).append((name.first, path))
    return picture_from(files, _csv_cells, verdict)


def picture_from(
    files: Mapping[str, Sequence[tuple[int, File]]], cells: Callable[[File], Iterable[Cell]], verdict: Verdict
) -> VerdictPicture | None:
    """Return the picture of a verdict from files of a rank; None if they show nothing of it.

    Args:
        files: by signal, each with the first step that may be in it.
        cells: function that returns column, row, step and value of a file, in the order of its rows.
    """
    if verdict.since is None or not verdict.where:
        return None
    pictures = [_of_signal(signal, sorted(files[signal]), cells, verdict) for signal in SIGNALS if signal in files]
    shown = [picture for picture in pictures if picture is not None]
    return max(shown, key=lambda picture: _telling(picture, verdict.signal), default=None)


def _of_signal(
    signal: str, files: Sequence[tuple[int, File]], cells: Callable[[File], Iterable[Cell]], verdict: Verdict
) -> VerdictPicture | None:
    since = verdict.since or 0
    before = [file for first, file in files if first < since][-BEFORE:]
    after = [file for first, file in files if first >= since][: AFTER + 1]
    column, values = _read(signal, [*before, *after], cells, verdict.where)
    steps = sorted({step for row in values.values() for step in row})
    steps = [
        *[step for step in steps if step < since][-BEFORE:],
        *[step for step in steps if step >= since][: AFTER + 1],
    ]
    named = _named([*values], verdict.where)
    if named is None or not steps:
        return None
    first = max(0, named - BESIDE)
    shown = [*values.items()][first : named + BESIDE + 1]
    kept = tuple((name, {step: row[step] for step in steps if step in row}) for name, row in shown)
    return VerdictPicture(signal, column, since, tuple(steps), kept, named - first)


def _read(
    signal: str, files: Sequence[File], cells: Callable[[File], Iterable[Cell]], where: Sequence[str]
) -> tuple[str, dict[str, RowValues]]:
    """Return the column that is shown and its values by row, in the order of the last file: the order of execution. Of
    activations outputs are shown, and an input that ``where`` names."""
    column, values = "", dict[str, RowValues]()
    for file in reversed(files):
        for chosen, name, step, value in cells(file):
            column = column or chosen
            if chosen == column and (signal != "actv" or ".output" in name or name in where):
                row = values.setdefault(name, {})
                if math.isfinite(row.get(step, 0.0)):  # of several micro steps, the one that is not finite
                    row[step] = value
    return column, values


def column_of(columns: Sequence[str]) -> str:
    """Return the column whose values are shown; an empty text if there is none."""
    return next((name for name in VALUES if name in columns), "")


def _csv_cells(path: Path) -> Iterator[Cell]:
    """Yield the cells of a file; rows that cannot be read are left out, which every other command reports."""
    if path.stat().st_size > MOST_BYTES:
        return
    with path.open(encoding="utf-8", errors="backslashreplace", newline="") as file:
        table = (row.cells for row in rows(file) if row.cells)
        header = next(table, [])
        column = column_of(header)
        if not column or not {NAME, STEP} <= {*header}:
            return
        at = header.index(NAME), header.index(STEP), header.index(column)
        for cells in table:
            try:
                name, step, value = (cells[index] for index in at)
                yield column, name, int(step), float(value)
            except (ValueError, IndexError):
                continue


def _named(names: Sequence[str], where: Sequence[str]) -> int | None:
    """Return the index of the first row that belongs to what a verdict names, the last module first."""
    for place in reversed(where):
        for index, name in enumerate(names):
            if name == place or name.startswith((f"{place}.", f"{place}:")):
                return index
    return None


def _end_of(name: str, most: int, mark: str) -> str:
    """Return a name, or its end after a mark if it is longer than ``most``: it differs there from its neighbours."""
    return name if len(name) <= most else f"{mark}{name[len(name) - most + len(mark) :]}"


def _telling(picture: VerdictPicture, signal: str) -> tuple[bool, bool, bool, int]:
    """Return how much a picture shows: rows that are not finite beside others, the signal of the row that a verdict
    names, and a bad step beside good ones."""
    cells: Mapping[int, float] = picture.rows[picture.named][1]
    before = any(step < picture.since for step in cells)
    since = [values[step] for _, values in picture.rows for step in values if step >= picture.since]
    contrast = 0 < sum(map(math.isfinite, since)) < len(since)
    return contrast, picture.signal == signal, before and bool(since), -SIGNALS.index(picture.signal)


def _drawn(values: RowValues, steps: Sequence[int], blocks: bool) -> list[str]:
    """Return a sign for each step: how large its value is among those of the row, on a logarithmic scale."""
    sizes = {step: math.log10(abs(value)) for step, value in values.items() if value and math.isfinite(value)}
    low, high = min(sizes.values(), default=0.0), max(sizes.values(), default=0.0)
    signs = BLOCKS if blocks else LEVELS
    drawn = []
    for step in steps:
        value = values.get(step)
        if value is None:
            drawn.append("·" if blocks else ".")
        elif math.isnan(value):
            drawn.append("NaN")
        elif math.isinf(value):
            drawn.append("Inf")
        elif not value:
            drawn.append("0")
        else:
            level = MIDDLE if high - low < FLAT else round((sizes[step] - low) / (high - low) * (len(signs) - 1))
            drawn.append(signs[level])
    return drawn
