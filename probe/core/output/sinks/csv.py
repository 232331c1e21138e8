"""Tables as text: one CSV file a signal and range of steps, in the layout of existing readers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from io import FileIO
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any, NamedTuple

from probe.core.histogram import HISTOGRAM, text_of
from probe.core.moments import COUNTS, derive_all
from probe.core.output.sinks.context import SinkContext
from probe.core.records import Batch, Snapshot
from probe.core.storage.csv_rows import rows
from probe.core.storage.files import LONGEST_LINE, append, cut_torn_line, open_for_append, replace_text, replacing
from probe.core.storage.layout import (
    CALL,
    CSV,
    STEP,
    candidates,
    cells_of,
    columns_of,
    csv_cell,
    file_of_step,
    histograms_of,
    ops_of,
)

WHOLE = COUNTS | {"count", "bytes"}
"""Columns of whole numbers."""
WITH_CALL = f",{CALL}"
"""End of the header of a file that has repetitions of modules."""


Numbers = tuple[Any, ...]
"""Values of the rows of a batch, one after the other."""


class _Layout(NamedTuple):
    """All of a batch but its numbers, ready to be filled in."""

    about: tuple[object, ...]
    """The parts of a batch from which the other fields follow; while they stay the same, so do these."""
    ops: tuple[str, ...]
    """Ops and added columns, in their order."""
    histograms: bool
    """True if histograms are written."""
    header: str
    """Header without ``call`` and without line break."""
    rows: dict[bool, str]
    """Format string of all rows, without and with ``call``."""
    calls: bool
    """True if any row needs ``call``."""


class CsvSink:
    """Writer of ``{signal}_{first}-{last}.csv``; each write is one append, so a killed run leaves whole files."""

    def __init__(self, context: SinkContext) -> None:
        self._directory = context.directory
        self._ndigits = context.ndigits
        self._steps_per_file = context.steps_per_file
        self._layouts: dict[str, _Layout] = {}
        self._segments: dict[str, tuple[range, Path]] = {}
        """The file to which rows of each signal were written last, with the steps that may be in it."""

    def open(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)

    def close(self) -> None:
        """Do nothing: no file is kept open."""

    def write(self, snapshot: Snapshot) -> None:
        """Append every batch, also after one has failed; the first failure is raised at the end."""
        failures: list[OSError] = []
        for batch in snapshot.batches:
            try:
                self._write(batch, snapshot.ops)
            except OSError as failure:
                failures.append(failure)
        if failures:
            raise failures[0]

    def _write(self, batch: Batch, ops: Sequence[str]) -> None:
        if not batch.keys:
            return
        layout = self._layout(batch, ops)
        numbers = self._numbers(batch, layout)
        for steps, path in self._candidates(batch):
            if self._append(path, layout, numbers):
                self._segments[batch.signal] = (steps, path)
                return

    def _layout(self, batch: Batch, ops: Sequence[str]) -> _Layout:
        form = (batch.keys, batch.shapes, batch.dtypes, batch.coverage, batch.micro_stepped)
        whole_form = (*form, tuple(batch.columns), batch.distribution, ops)
        layout = self._layouts.get(batch.signal)
        if layout is None or layout.about != whole_form:
            layout = self._layouts[batch.signal] = _lay_out(batch, whole_form, ops, self._ndigits)
        return layout

    def _candidates(self, batch: Batch) -> Iterator[tuple[range, Path]]:
        """Yield files that may hold ``batch``, best first; files with other columns cannot.

        When the columns change inside a file's range, the new file begins its range at that step: readers that look
        for ``_{digits}-{digits}.csv`` find it, and no step is in two files.
        """
        steps, path = self._segments.get(batch.signal, (range(0), Path()))
        if batch.step in steps:
            yield steps, path
        steps, name = file_of_step(batch.signal, batch.step, self._steps_per_file, CSV)
        yield steps, self._directory / name
        for table in islice(candidates(batch.signal, steps[0], steps[-1], batch.step, CSV), 1, None):
            yield steps, self._directory / str(table)

    def _append(self, path: Path, layout: _Layout, numbers: Numbers) -> bool:
        """Append to ``path`` unless that has other columns; a new file appears with its header and rows.

        If only ``call`` is missing, it is added as 0 to every row first.
        """
        if not path.exists():
            replace_text(path, _text(layout, "", numbers))
            return True
        with open_for_append(path) as file:
            header = _header(file, layout.header + WITH_CALL)
            if header not in ("", layout.header, layout.header + WITH_CALL):
                return False
            cut_torn_line(file, path)
            if header != layout.header or not layout.calls:
                append(file, _text(layout, header, numbers).encode("utf-8", "backslashreplace"))
                return True
        with replacing(path) as target, path.open(newline="\n", encoding="utf-8") as source:
            for number, row in enumerate(rows(source)):
                target.write("".join(row.lines).rstrip("\r\n") + f",{0 if number else CALL}\n")
        return self._append(path, layout, numbers)

    def _numbers(self, batch: Batch, layout: _Layout) -> Numbers:
        """Return the values for the rows of a layout: for each row its step, its numbers and its histogram."""
        ops = layout.ops
        values = derive_all(ops, batch.columns, batch.shapes)
        columns = [self._rounded(op, column.tolist()) for op, column in zip(ops, values, strict=True)]
        texts = [[*map(text_of, batch.columns[HISTOGRAM])]] if layout.histograms else []
        return tuple(chain.from_iterable(zip(repeat(batch.step, len(batch.keys)), *columns, *texts, strict=True)))

    def _rounded(self, op: str, values: list[float]) -> list[float]:
        # Python's round is exact where NumPy's multiplies by a power of ten and overflows.
        return values if self._ndigits is None or op in WHOLE else [round(value, self._ndigits) for value in values]


def _text(layout: _Layout, header_of_file: str, numbers: Numbers) -> str:
    """Return the rows for a file whose header is ``header_of_file``; if that is empty, the header comes first."""
    calls = layout.calls or header_of_file.endswith(WITH_CALL)
    header = "" if header_of_file else layout.header + WITH_CALL * calls + "\n"
    return header + layout.rows[calls] % numbers


def _lay_out(batch: Batch, form: tuple[object, ...], written: Sequence[str], ndigits: int | None) -> _Layout:
    ops, histograms = ops_of(batch, written), histograms_of(batch, written) is not None
    columns, cells = columns_of(batch, ops, histograms), cells_of(batch)
    filled = {op: "%.0f" if op in WHOLE else "%.6g" if ndigits is None else "%r" for op in ops}
    filled |= {STEP: "%d", HISTOGRAM: "%s"}
    texts = [
        repeat(filled[column])
        if column in filled
        else [csv_cell(str(cell)).replace("%", "%%") for cell in cells[column]]
        for column in columns
    ]
    rows = [",".join(row) for row in zip(*texts, strict=False)]  # as many as there are names
    return _Layout(
        about=form,
        ops=ops,
        histograms=histograms,
        header=",".join(map(csv_cell, columns)),
        rows={
            False: "\n".join(rows) + "\n",
            True: "\n".join(f"{row},{call}" for row, call in zip(rows, cells[CALL], strict=True)) + "\n",
        },
        calls=any(cells[CALL]),
    )


def _header(file: FileIO, expected: str) -> str:
    """Return the first line of ``file`` without its break; remove a header torn in the middle, and return ``""``."""
    file.seek(0)
    start = file.read(LONGEST_LINE).decode("utf-8", "replace")
    line, ended, _ = start.partition("\n")
    if not ended and expected.startswith(line):
        file.truncate(0)
        return ""
    return line
