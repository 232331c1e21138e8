"""Pieces of a comparison: some ranks of both runs, in a range of steps."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

from probe.core.analysis.pieces import Piece, by_ranks, connected, opened
from probe.core.naming import CLOCKS, PHASE, RUN
from probe.core.storage.directories import RankDirectory, RecordedRun, last_run
from probe.core.storage.duckdb_reader import Connection, Rows
from probe.core.storage.location import Place
from probe.core.storage.manifest import FILE, HIGHEST, Manifest
from probe.core.storage.problems import Problems
from probe.core.storage.run_directory import directories_of
from probe.core.storage.sql import literal
from probe.core.storage.table_files import first_step, has_tables

MOST_BYTES = 32 << 20
"""Bytes of A's files in a piece; those of B come on top."""
LAST = 2**32
"""Bound that no step reaches."""
_ELEMENTS = """
CREATE OR REPLACE TEMP MACRO elements(shape) AS
    coalesce(list_product(list_transform(string_split(trim(shape, '[]()'), ','), lambda x: TRY_CAST(x AS DOUBLE))), 1)
"""
CLOCK_ROWS = {RUN: f"name IN ({', '.join(map(literal, CLOCKS))}) OR starts_with(name, {literal(PHASE)})"}
"""Rows that differ between any two runs."""


@dataclass(frozen=True)
class ComparedPiece(Piece):
    """Part of A, with the part of B that it is compared with; ``steps`` are A's."""

    other: Piece | None = None
    pairs: tuple[tuple[int, int], ...] = ()
    """Ranks of A, each with that of B."""
    offset: int = 0
    """Number that is added to a step of A to get that of B."""

    def halves(self) -> tuple[Piece, ...]:
        """Return two pieces with the same rows of both runs; none if the piece cannot be cut."""
        return tuple(_with_other(half) for half in super().halves() if isinstance(half, ComparedPiece))

    def of_b(self) -> Piece:
        """Return the part of B."""
        assert self.other is not None
        return self.other


def span(piece: Piece) -> tuple[int, int]:
    """Return the first and the last step that a piece may have."""
    return piece.steps or (0, HIGHEST)


def _with_other(half: ComparedPiece) -> ComparedPiece:
    """Return ``half`` with no more of B than belongs to it."""
    ranks = frozenset(half.ranks)
    pairs = tuple(pair for pair in half.pairs if pair[0] in ranks)
    half_of_b = half.of_b().of_ranks(of_b for _, of_b in pairs)
    if half.steps is not None:
        first, last = half.steps
        bounds = first + half.offset if first else 0, last + half.offset if last < HIGHEST else LAST
        half_of_b = half_of_b.of_steps(*bounds)
    return replace(half, other=half_of_b, pairs=pairs)


def divided(a: Side, b: Side, ranks: Iterable[tuple[int, int]], offset: int, least: int = 1) -> list[ComparedPiece]:
    """Divide a comparison by ranks, and ranks of more than :data:`MOST_BYTES` by ranges of steps too.

    Args:
        ranks: ranks of A, each with that of B.
        offset: number that is added to a step of A to get that of B.
        least: number of pieces at least, if there are as many ranks.
    """
    pairs = tuple(ranks)
    (whole,) = by_ranks(_restricted(b, {of_b for _, of_b in pairs}), most_bytes=sys.maxsize)
    of_a = _restricted(a, {of_a for of_a, _ in pairs})
    pieces: list[ComparedPiece] = []
    for part in by_ranks(of_a, most_bytes=MOST_BYTES, least=least, cuts=("ranks", "steps")):
        fields = {name: getattr(part, name) for name in Piece.__dataclass_fields__}
        pieces += _small(_with_other(ComparedPiece(**fields, other=whole, pairs=pairs, offset=offset)))
    return pieces


def _restricted(side: Side, ranks: Iterable[int]) -> RecordedRun:
    numbers = frozenset(ranks)
    return RecordedRun(tuple(directory for directory in side.run.directories if directory.rank in numbers), ())


def _small(piece: ComparedPiece) -> Iterator[ComparedPiece]:
    """Yield pieces of at most twice :data:`MOST_BYTES`, if ``piece`` can be cut."""
    halves = piece.halves() if piece.bytes > 2 * MOST_BYTES else ()
    if not halves:
        yield piece
    for half in halves:
        if isinstance(half, ComparedPiece):
            yield from _small(half)


class OpenPiece(NamedTuple):
    """Piece whose rows can be read."""

    piece: ComparedPiece
    connection: Connection
    a: Rows
    b: Rows


class ReadProblems(NamedTuple):
    """Problems of one run in a piece."""

    opening: Problems
    """Problems of whole files."""
    reading: Problems
    """Problems of lines."""


class PieceResult(NamedTuple):
    """Part of every result: which piece it is about, and what could not be read."""

    place: tuple[int, ...]
    ranks: tuple[int, ...]
    steps: tuple[int, int]
    """First and last step of A."""
    a: ReadProblems
    b: ReadProblems


@contextmanager
def opened_piece(piece: ComparedPiece, done: list[PieceResult]) -> Iterator[OpenPiece]:
    """Open the files of a piece in one database; at the end its problems are added to ``done``."""
    problems = [(Problems(), Problems()) for _ in "ab"]
    with closing(connected()) as connection, ExitStack() as stack:
        connection.execute(_ELEMENTS)
        both = []
        for letter, part, (opening, reading) in zip("ab", (piece, piece.of_b()), problems, strict=True):
            rows = stack.enter_context(opened(part, opening, connection, letter, CLOCK_ROWS))
            rows.problems = reading
            both.append(rows)
        yield OpenPiece(piece, connection, *both)
    done.append(PieceResult(piece.place, piece.ranks, span(piece), *(ReadProblems(*of_run) for of_run in problems)))


class Side(NamedTuple):
    """One of the two runs."""

    letter: str
    root: Place
    run: RecordedRun
    problems: Problems

    @property
    def framework(self) -> str:
        return self.run.directories[0].manifest.framework

    @property
    def decimals(self) -> float:
        """The unit of the last decimal place that was written, where their number is fixed; else 0."""
        given = self.run.directories[0].manifest.config.get("ndigits")
        return 10.0**-given if isinstance(given, int) else 0.0

    @property
    def paced(self) -> bool:
        """True if it chose the steps that it recorded by their cost, so that another run of the program has others."""
        return self.run.directories[0].manifest.config.get("max_overhead") is not None


def found(letter: str, root: Place, directory: str = "") -> Side:
    """Find the last run in a directory.

    Args:
        directory: name of a directory of the run that is found instead.

    Raises:
        ValueError: if it cannot be read.
    """
    problems = Problems()
    return Side(letter, root, _run(root.expanduser(), problems, directory), problems)


def _run(root: Place, problems: Problems, directory: str) -> RecordedRun:
    """The last run in ``root``, or what ``probe merge`` has written there, as of rank 0."""
    merged = root.is_dir() and has_tables(root) and not (root / FILE).exists()
    if merged and not any(root.glob(directories_of())):
        return RecordedRun((RankDirectory(root, 0, "", 0.0, Manifest(), first_step(root)),), ())
    return last_run(root, problems, directory)
