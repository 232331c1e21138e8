"""Names, steps, dtypes and columns of the rows of both runs, counted by pieces."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import NamedTuple

from probe.core.analysis.compare.compared_piece import ComparedPiece, OpenPiece, PieceResult, opened_piece
from probe.core.storage.duckdb_reader import Rows, fill
from probe.core.storage.layout import CSV, MICRO_STEP, is_number


class FilesAlike(NamedTuple):
    """Format and columns of some files of a signal."""

    format: str
    columns: tuple[str, ...]
    described: bool
    """True if the columns are those of any of the files, which contain their own."""


class CountedRows(NamedTuple):
    """Rows of one signal in one run."""

    files: list[FilesAlike]
    """In the order of the files."""
    dtypes: dict[str, set[str]]
    """Names, each with its dtypes."""
    steps: dict[int, int]
    """Steps, as A counts, with the number of rows."""
    sizes: dict[str, tuple[float, float]]
    """Names of gradients, each with two sums over its rows: of the squares of its root mean square, and of those of the
    largest of all names in the same step of the rank."""


class Wanted(NamedTuple):
    """Rows that are counted; those of other signals are only listed."""

    of_a: Collection[str] | None
    of_b: Collection[str] | None
    """Signals of B; None for all, as in ``of_a``."""
    first: int
    last: int
    """Last step of A; ``first`` is the first."""

    def has(self, letter: str, signal: str) -> bool:
        """Return whether rows of a signal are counted."""
        columns = self.of_a if letter == "a" else self.of_b
        return columns is None or signal in columns


class Census:
    """Rows by run, ``a`` or ``b``, and by signal as that run names it."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], CountedRows] = {}

    def add(self, letter: str, signal: str, counted: CountedRows) -> None:
        """Add rows; those of files in the order of the files."""
        total = self.rows.setdefault((letter, signal), CountedRows([], {}, {}, {}))
        total.files.extend(files for files in counted.files if files not in total.files)
        for name, dtypes in counted.dtypes.items():
            total.dtypes.setdefault(name, set()).update(dtypes)
        for step, number in counted.steps.items():
            total.steps[step] = total.steps.get(step, 0) + number
        for name, (size, largest) in counted.sizes.items():
            before = total.sizes.get(name, (0.0, 0.0))
            total.sizes[name] = before[0] + size, before[1] + largest

    def merge(self, other: Census) -> None:
        """Add the rows of the next piece."""
        for (letter, signal), counted in other.rows.items():
            self.add(letter, signal, counted)

    def signals(self, letter: str) -> tuple[str, ...]:
        """Return the signals of one run, in the order of its files."""
        return tuple(signal for of, signal in self.rows if of == letter)

    def numbers(self, letter: str, signal: str) -> tuple[str, ...]:
        """Return the ops and other numbers of a signal, in the order in which a reader of all files has them."""
        groups: dict[object, dict[str, None]] = {}
        for files in self.rows[letter, signal].files:
            alike = files[:2] if files.format == CSV else files.format
            groups.setdefault(alike, {}).update(dict.fromkeys(files.columns))
        return tuple(dict.fromkeys(c for columns in groups.values() for c in columns if is_number(c)))

    def micro_stepped(self, letter: str, signal: str) -> bool | None:
        """Return whether the files of a signal have a column for micro steps; None if unknown, as for Parquet files."""
        columns = [files.columns for files in self.rows[letter, signal].files if not files.described]
        return any(MICRO_STEP in of_rank for of_rank in columns) if columns else None

    def names(self, letter: str, signals: Iterable[str]) -> list[str]:
        """Return all names of some signals in one run, sorted."""
        return sorted(set[str]().union(*(self.rows[letter, signal].dtypes for signal in signals)))

    def dtypes(self, letter: str, signals: Iterable[str]) -> list[str]:
        """Return all dtypes of some signals in one run, sorted."""
        named = (dtypes for signal in signals for dtypes in self.rows[letter, signal].dtypes.values())
        return sorted(set[str]().union(*named))

    def share(self, letter: str, signal: str, name: str) -> float:
        """Return the size of a gradient as part of that of the largest, root mean squares over all steps; NaN if it is
        not known."""
        size, largest = self.rows[letter, signal].sizes.get(name, (0.0, 0.0))
        return math.sqrt(size / largest) if largest else math.nan

    def steps(self, letter: str, signals: Iterable[str]) -> set[int]:
        """Return the steps, as A counts, of which one run has rows of some signals."""
        return set().union(*(self.rows[letter, signal].steps for signal in signals))


def count(piece: ComparedPiece, request: Wanted) -> tuple[Census, PieceResult]:
    """Count the rows of a piece."""
    census, done = Census(), list[PieceResult]()
    with opened_piece(piece, done) as opened:
        fill(opened.connection, "ranks", {"a": "INTEGER", "b": "INTEGER"}, piece.pairs)
        for letter, rows, offset in (("a", opened.a, 0), ("b", opened.b, piece.offset)):
            for signal in rows.signals:
                counted = CountedRows(_files(rows, signal), {}, {}, {})
                if request.has(letter, signal):
                    span = request.first + offset, request.last + offset
                    _count(opened, rows.view(signal), letter, span, offset, counted)
                    if signal.startswith(GRADIENT) and "norm" in rows.numbers(signal):
                        counted.sizes.update(_sizes(opened, rows.view(signal), letter, span))
                census.add(letter, signal, counted)
    return census, done[0]


def _count(opened: OpenPiece, view: str, letter: str, span: tuple[int, int], offset: int, counted: CountedRows) -> None:
    query = _COUNT.format(view=view, letter=letter, first=span[0], last=span[1])
    for which, name, step, dtype, number in opened.connection.execute(query).fetchall():
        if which == _BY_STEP and step is not None:
            counted.steps[step - offset] = number
        elif which == _BY_NAME and name is not None:
            counted.dtypes.setdefault(name, set()).update([dtype] if dtype is not None else [])


def _sizes(opened: OpenPiece, view: str, letter: str, span: tuple[int, int]) -> dict[str, tuple[float, float]]:
    query = _SIZES.format(view=view, letter=letter, first=span[0], last=span[1])
    return {name: (size, largest) for name, size, largest in opened.connection.execute(query).fetchall()}


def _files(rows: Rows, signal: str) -> list[FilesAlike]:
    files = [file for _, file in rows.files[signal]]
    unread = [file for file in files if not file.columns]
    described = rows.columns(rows.source(unread)) if unread else ()
    alike = (FilesAlike(file.format, file.columns or described, not file.columns) for file in files)
    return list(dict.fromkeys(alike))


GRADIENT = "grad_"
"""Begin of the signals of gradients of parameters."""
_BY_NAME, _BY_STEP = 0b010, 0b101
"""Values of ``grouping(name, step, dtype)``."""
_COUNT = """
SELECT grouping(name, step, dtype), name, step, dtype, count(*)
FROM (SELECT name, step, dtype FROM {view} AS f JOIN ranks AS r ON r.{letter} = f.rank
      WHERE step BETWEEN {first} AND {last})
GROUP BY GROUPING SETS ((name, dtype), (step))
"""
_RMS = """
SELECT * FROM (
    SELECT name, rank, step, norm / sqrt(greatest(elements(shape), 1)) AS rms
    FROM {view} AS f JOIN ranks AS r ON r.{letter} = f.rank WHERE step BETWEEN {first} AND {last})
WHERE isfinite(rms)
"""
_SIZES = f"""
SELECT name, sum(rms * rms), sum(largest * largest)
FROM ({_RMS}) JOIN (SELECT rank, step, max(rms) AS largest FROM ({_RMS}) GROUP BY ALL) USING (rank, step)
WHERE name IS NOT NULL GROUP BY name
"""  # noqa: S608 - our own words
"""The rows are read twice: a window over them would hold all of them at a time."""
