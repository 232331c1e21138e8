"""A run cut into pieces of about equal bytes, by ranks or by ranges of steps, each of which a worker reads alone.

What is computed of a piece must merge: with pieces by ranks over ranks, with pieces by steps over ranges of steps. The
number of pieces, their order and their limits are no part of a result.
"""

from __future__ import annotations

import math
import multiprocessing
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Literal, NamedTuple

from probe.core.language import Message, message
from probe.core.messages import counted
from probe.core.storage.directories import RankDirectory, RecordedRun
from probe.core.storage.duckdb_reader import Connection, Rows, connect
from probe.core.storage.layout import table_name
from probe.core.storage.listing import with_ends
from probe.core.storage.location import Place, contents
from probe.core.storage.manifest import HIGHEST, Manifest
from probe.core.storage.packed.run import packed_files, packed_index
from probe.core.storage.problems import Problems
from probe.core.storage.table_files import TableFile, each_once

Cut = Literal["ranks", "steps"]
Files = Mapping[str, tuple[tuple[int, TableFile], ...]]

MOST_BYTES = 64 << 20
"""Bytes of a piece's files: about a second of judging CSV."""
OPENING = 32 << 10
"""Cost of a directory, however little is in it, in bytes of CSV that are read in the time in which it is opened."""
LISTED = 1000
"""Objects in one answer of object storage to a listing."""
REQUESTS = 3
"""Requests for an object at most: its size, and its two ends or parts."""


@dataclass(frozen=True)
class Piece:
    """A part of a run that is read by itself; it can be pickled, and is small."""

    root: Place
    directories: tuple[RankDirectory, ...]
    """All directories of its ranks, without their manifests unless they were asked for."""
    files: Files
    """Files by signal, each with the index of its directory in ``directories``."""
    steps: tuple[int, int] | None = None
    """First and last step, both included; None for all."""
    signals: tuple[str, ...] | None = None
    """Signals that are read; None for all."""
    bytes: int = 0
    """Estimate for what is read."""
    rows: int = 0
    """Estimate; 0 if unknown."""
    checked: bool = False
    """True if its files were opened before, and their problems are recorded."""
    place: tuple[int, ...] = ()
    """Number among the pieces of a call, then 0 or 1 for each time that it was halved."""
    cuts: tuple[Cut, ...] = ()
    """Ways in which it may be cut further, the preferred one first."""

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(directory.rank for directory in self.directories))

    def halves(self) -> tuple[Piece, ...]:
        """Return two pieces that hold the same rows together; none if it cannot be cut."""
        for cut in self.cuts:
            parts = (_parts_of_ranks if cut == "ranks" else _parts_of_steps)(self, 2)
            if len(parts) > 1:
                return tuple(parts)
        return ()

    def of_ranks(self, ranks: Iterable[int]) -> Piece:
        """Return the part of some ranks."""
        return _split_by_ranks(self, dict.fromkeys(ranks, 0), 1)[0]

    def of_steps(self, first: int, last: int) -> Piece:
        """Return the part from step ``first`` to ``last``, both included."""
        return _split_by_steps(self, [first, last + 1])[0]

    def __str__(self) -> str:
        ranks = self.ranks
        spread = f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks from {ranks[0]} to {ranks[-1]}"
        return spread if self.steps is None else f"{spread}, steps {self.steps[0]} to {self.steps[1]}"


def by_ranks(
    run: RecordedRun,
    rows: Rows | None = None,
    most_bytes: int = MOST_BYTES,
    signals: Iterable[str] | None = None,
    least: int = 1,
    manifests: bool = False,
    cuts: tuple[Cut, ...] = ("ranks",),
) -> list[Piece]:
    """Cut a run into pieces of whole ranks, in order of rank; each has all directories of its ranks.

    Args:
        rows: the opened files of ``run``; None if they were not opened: then the workers record all problems of files,
            and here only names are listed.
        most_bytes: bytes of a piece, unless a single rank has more.
        least: number of pieces at least, if there are as many ranks.
        manifests: whether the pieces keep the manifests of their directories.
        cuts: ways in which a piece may be cut further if it does not fit into memory.
    """
    whole = replace(_whole(run, rows, signals, manifests), cuts=cuts)
    return _parts_of_ranks(whole, _number(whole, most_bytes, least))


def by_steps(
    run: RecordedRun,
    rows: Rows | None = None,
    most_bytes: int = MOST_BYTES,
    signals: Iterable[str] | None = None,
    least: int = 1,
) -> list[Piece]:
    """Cut a run into ranges of steps, in their order; each piece has all ranks. Together the ranges contain every step
    from 0 on, whatever steps there are. Arguments as of :func:`by_ranks`; a piece has more than ``most_bytes`` where
    less would have the workers open every file too often."""
    whole = replace(_whole(run, rows, signals, manifests=False), cuts=("steps",))
    return _parts_of_steps(whole, _number_by_steps(_spans(whole), most_bytes, least))


class ReadingCost(NamedTuple):
    """Estimate of the work that pieces are."""

    pieces: int
    ranks: int
    files: int
    """Files that are read; a file of several pieces counts in each."""
    bytes: int
    rows: int
    requests: int
    """Requests to object storage at most: listings, and three for each file."""

    @property
    def text(self) -> Message:
        """One line for people."""
        return message(
            "{pieces}: {ranks}, {files}, {size:,.1f} MB{rows}",
            pieces=counted(self.pieces, "piece"),
            ranks=counted(self.ranks, "rank"),
            files=counted(self.files, "file"),
            size=self.bytes / 1e6,
            rows=message(" and {rows}", rows=counted(self.rows, "row")) if self.rows else "",
        )


def reading_cost(pieces: Iterable[Piece]) -> ReadingCost:
    """Add up what is known of pieces before anything is read."""
    ranks: set[int] = set()
    number = files = size = rows = 0
    for number, piece in enumerate(pieces, 1):  # noqa: B007 - the last number is the count
        ranks.update(piece.ranks)
        files += sum(map(len, piece.files.values()))
        size += sum(int(size) for _, _, size, _ in _spans(piece))
        rows += piece.rows
    return ReadingCost(number, len(ranks), files, size, rows, math.ceil(files / LISTED) + files * REQUESTS)


class FileSpan(NamedTuple):
    """Part of a file that a piece reads."""

    first: int
    """First step."""
    after: int
    """The step after the last."""
    bytes: float
    rows: float


@contextmanager
def opened(
    piece: Piece,
    problems: Problems,
    connection: Connection | None = None,
    schema: str = "main",
    left_out: Mapping[str, str] | None = None,
) -> Iterator[Rows]:
    """Open the rows of a piece: the views have its ranks, steps and signals alone.

    Problems that are known since the run was opened are not recorded again; a file that has gone since is. The numbers
    of a signal are those that the files of the piece have. A worker process uses one thread.

    Args:
        connection: a database that holds other rows too, which its owner closes; else one of its own.
        schema: schema of the views in the database.
        left_out: for some signals an SQL condition of the rows that are left out.
    """
    if connection is None:
        with closing(connected()) as in_memory, opened(piece, problems, in_memory, schema, left_out) as rows:
            yield rows
        return
    opening, conditions = Problems(), {"": "false", **(left_out or {})}
    packed = any(directory.packed is not None for directory in piece.directories)
    files = piece.files if packed else None
    with Rows(piece.directories, opening, connection, schema, conditions, files) as rows:
        gone = set() if packed else _gone(piece, rows)
        if gone or not piece.checked:
            problems.extend(opening)
        for path in sorted(gone - {problem.path for problem in opening.kept}):
            problems.add(path, message("it was there when the run was listed, and cannot be read any more: left out"))
        rows.problems = problems
        if piece.steps is not None:
            outside = "step NOT BETWEEN {} AND {}".format(*piece.steps)
            conditions |= {s: " OR ".join([outside, *filter(None, [conditions.get(s)])]) for s in rows.signals}
        if not packed:
            rows.listing.files = {
                signal: list(in_memory) for signal, in_memory in _restricted(rows.files, piece).items()
            }
        yield rows


def halved(piece: Piece) -> tuple[Piece, ...]:
    """Return the halves of a piece, each with its place; none if it cannot be cut."""
    return tuple(replace(half, place=(*piece.place, n)) for n, half in enumerate(piece.halves()))


def is_of_memory(error: BaseException) -> bool:
    """Return whether a piece has failed because it did not fit into memory."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return isinstance(error, MemoryError) or "OutOfMemoryException" in names  # DuckDB's


@contextmanager
def with_threads(number: int) -> Iterator[None]:
    """Let pieces that are opened in the block be read by so many threads."""
    token = _THREADS.set(number)
    try:
        yield
    finally:
        _THREADS.reset(token)


_THREADS: ContextVar[int | None] = ContextVar("threads", default=None)


def connected() -> Connection:
    """Open a database for the rows of a piece; a worker process uses one thread."""
    in_worker = multiprocessing.parent_process() is not None
    return connect(threads=_THREADS.get() or (1 if in_worker else None))


def _gone(piece: Piece, rows: Rows) -> set[Place]:
    """Return the files of a piece that its worker does not find."""
    originals = {rows.original(file) for files in rows.files.values() for _, file in files}
    return {file.path for files in piece.files.values() for _, file in files} - originals


def _whole(run: RecordedRun, rows: Rows | None, signals: Iterable[str] | None, manifests: bool) -> Piece:
    """Return a run as one piece, its directories in order of rank."""
    directories = run.directories if rows is None else rows.directories
    files = _listed(directories) if rows is None else _originals(rows)
    if not manifests:
        directories = tuple(directory._replace(manifest=Manifest()) for directory in directories)
    root = directories[0].path.parent
    piece = Piece(root, directories, files, signals=None if signals is None else tuple(signals))
    return _filled(replace(piece, files=_restricted(files, piece), checked=rows is not None))


def _originals(rows: Rows) -> Files:
    return {
        signal: tuple((n, _sized(file._replace(path=rows.original(file)))) for n, file in files)
        for signal, files in rows.blocks.items()
    }


def _listed(directories: Sequence[RankDirectory]) -> Files:
    """Return the files of each directory by their names, none of them opened."""
    by_signal: dict[str, list[tuple[int, TableFile]]] = {}
    if directories[0].packed is not None:
        by_signal = packed_files(packed_index(directories[0].path.parent), directories)
        return {signal: tuple(files) for signal, files in by_signal.items()}
    for n, directory in enumerate(directories):
        named = [(name, path) for path in contents(directory.path) if (name := table_name(path.name))]
        files = [TableFile(path, t.signal, t.first, t.last, t.part, t.format, ()) for t, path in named]
        for file in each_once(sorted(files, key=lambda f: (f.signal, f.first, f.part, f.path.name))):
            by_signal.setdefault(file.signal, []).append((n, _sized(file)))
    return {signal: tuple(files) for signal, files in by_signal.items()}


def _sized(file: TableFile) -> TableFile:
    if file.bytes:
        return file
    try:
        return file._replace(bytes=file.path.stat().st_size)
    except OSError:  # its worker names it
        return file


def _restricted(files: Mapping[str, Sequence[tuple[int, TableFile]]], piece: Piece) -> Files:
    """Return the files that may have rows of the signals and steps of a piece; no signal without a file."""
    of_signals = {signal: pairs for signal, pairs in files.items() if piece.signals is None or signal in piece.signals}
    first, last = piece.steps or (0, HIGHEST)
    of_ranks = {
        signal: tuple((n, file) for n, file, end in with_ends(pairs) if piece.steps is None or first < end)
        for signal, pairs in of_signals.items()
    }
    within = {signal: tuple(pair for pair in pairs if pair[1].first <= last) for signal, pairs in of_ranks.items()}
    return {signal: pairs for signal, pairs in within.items() if pairs}


def _filled(piece: Piece) -> Piece:
    """Return ``piece`` with estimates of its bytes and rows."""
    spans = _spans(piece)
    size = sum(size for _, _, size, _ in spans) + OPENING * len(piece.directories)
    return replace(piece, bytes=int(size), rows=int(sum(rows for _, _, _, rows in spans)))


def _spans(piece: Piece) -> list[FileSpan]:
    """Return what each file has of the piece."""
    low, high = piece.steps or (0, HIGHEST)
    ranks = sorted(piece.ranks)
    spans = []
    for files in piece.files.values():
        for _, file, end in with_ends(files):
            stop = int(max(file.first + 1, min(end, file.last + 1)))
            first, after = max(file.first, low), min(stop, high + 1)
            share = max(0, after - first) / (stop - file.first) * _share_of_ranks(file, ranks)
            spans.append(FileSpan(first, max(first + 1, after), (file.bytes or 0) * share, (file.rows or 0) * share))
    return spans


def _share_of_ranks(file: TableFile, ranks: Sequence[int]) -> float:
    """Return the share of a file's ranks that is among ``ranks``, which are sorted."""
    if file.ranks is None:
        return 1.0
    return len(_within(ranks, file)) / (file.ranks[1] - file.ranks[0] + 1)


def _within(ranks: Sequence[int], file: TableFile) -> range:
    """Return the positions in ``ranks``, which are sorted, of those that a file of several ranks may have."""
    first, last = file.ranks or (0, -1)
    return range(bisect_left(ranks, first), bisect_right(ranks, last))


def _number(whole: Piece, most_bytes: int, least: int) -> int:
    return max(least, math.ceil(whole.bytes / most_bytes))


def _number_by_steps(spans: Sequence[FileSpan], most_bytes: int, least: int) -> int:
    """Return the number of ranges of steps. A file is opened in each of them that has some of its steps: where every
    cut goes through files, opening them must not cost more than reading."""
    if not spans:
        return least
    size = sum(span.bytes for span in spans)
    inner = max(span.after for span in spans) - min(span.first for span in spans) - 1
    cut = sum(span.after - span.first - 1 for span in spans) / max(inner, 1)  # files on average, by one cut
    affordable = max(_stretches(spans), math.ceil(size / max(most_bytes, OPENING * cut)))
    return max(least, min(math.ceil(size / most_bytes), affordable))


def _stretches(spans: Iterable[FileSpan]) -> int:
    """Return the number of ranges of steps, no file of which has steps of another one."""
    number, until = 0, -1
    for span in sorted(spans):
        number += span.first >= until
        until = max(until, span.after)
    return number


def _parts_of_ranks(piece: Piece, number: int) -> list[Piece]:
    """Return about ``number`` pieces of whole ranks, of about equal bytes; fewer if there are fewer ranks."""
    ranks = sorted(piece.ranks)
    at = {rank: n for n, rank in enumerate(ranks)}
    bounds = _cut(_bytes_of_ranks(piece, ranks, at), number)
    part_of = {rank: n for n, (first, end) in enumerate(bounds) for rank in ranks[first:end]}
    return _split_by_ranks(piece, part_of, len(bounds))


def _split_by_ranks(piece: Piece, part_of: Mapping[int, int], number: int) -> list[Piece]:
    """Return ``number`` pieces; ``part_of`` has the piece of each rank that is kept."""
    directories: list[list[RankDirectory]] = [[] for _ in range(number)]
    places: list[tuple[int, int] | None] = []
    for directory in piece.directories:
        part = part_of.get(directory.rank)
        places.append(None if part is None else (part, len(directories[part])))
        if part is not None:
            directories[part].append(directory)
    ranks = sorted(part_of)
    files: list[dict[str, list[tuple[int, TableFile]]]] = [{} for _ in range(number)]
    for signal, pairs in piece.files.items():
        for n, file in pairs:
            if file.ranks is not None:
                for part in sorted({part_of[ranks[at]] for at in _within(ranks, file)}):
                    first = next((i for i, d in enumerate(directories[part]) if d.rank >= file.ranks[0]), None)
                    if first is not None:
                        files[part].setdefault(signal, []).append((first, file))
            elif (place := places[n]) is not None:
                files[place[0]].setdefault(signal, []).append((place[1], file))
    parts = zip(directories, files, strict=True)
    return [
        _filled(replace(piece, directories=tuple(own_directories), files=_as_tuples(listed)))
        for own_directories, listed in parts
    ]


def _bytes_of_ranks(piece: Piece, ranks: Sequence[int], at: Mapping[int, int]) -> list[float]:
    sizes = [0.0] * len(ranks)
    for directory in piece.directories:
        sizes[at[directory.rank]] += OPENING
    for n, file in chain.from_iterable(piece.files.values()):
        within = [at[piece.directories[n].rank]] if file.ranks is None else _within(ranks, file)
        for place in within:
            sizes[place] += (file.bytes or 0) / len(within)
    return sizes


def _as_tuples(files: Mapping[str, Sequence[tuple[int, TableFile]]]) -> Files:
    return {signal: tuple(pairs) for signal, pairs in files.items()}


def _cut(sizes: Sequence[float], number: int) -> list[tuple[int, int]]:
    """Return at most ``number`` ranges of positions, none of them empty, whose sizes are about equal."""
    goal, at, ends = sum(sizes) / number, 0.0, [0]
    for n, size in enumerate(sizes):
        if n > ends[-1] and at + size / 2 > goal * len(ends) and len(ends) < number:
            ends.append(n)
        at += size
    return list(pairwise([*ends, len(sizes)]))


def _parts_of_steps(piece: Piece, number: int) -> list[Piece]:
    """Return about ``number`` pieces of ranges of steps, of about equal bytes, which begin where files begin if they
    can."""
    spans = _spans(piece)
    low, high = piece.steps or (0, HIGHEST)
    if not spans:
        return [replace(piece, steps=(low, high))]
    edges = sorted({edge for first, after, _, _ in spans for edge in (first, after)})
    change = dict.fromkeys(edges, 0.0)
    for first, after, size, _ in spans:
        change[first] += size / (after - first)
        change[after] -= size / (after - first)
    cells: list[tuple[int, float]] = []
    density, most = 0.0, sum(size for _, _, size, _ in spans) / number
    for first, after in pairwise(edges):
        density += change[first]
        parts = min(after - first, max(1, math.ceil(density * (after - first) / max(most, 1))))
        inner = [first + (after - first) * part // parts for part in range(parts + 1)]
        cells += [(begin, density * (end - begin)) for begin, end in pairwise(inner)]
    begins = [cells[first][0] for first, _ in _cut([size for _, size in cells], number)]
    return _split_by_steps(piece, [low, *begins[1:], high + 1])


def _split_by_steps(piece: Piece, limits: Sequence[int]) -> list[Piece]:
    """Return the pieces from each of ``limits`` to the step before the next."""
    files: list[dict[str, list[tuple[int, TableFile]]]] = [{} for _ in limits[1:]]
    for signal, pairs in piece.files.items():
        for n, file, end in with_ends(pairs):
            for part in range(max(bisect_right(limits, file.first) - 1, 0), min(bisect_left(limits, end), len(files))):
                files[part].setdefault(signal, []).append((n, file))
    return [
        _filled(replace(piece, steps=(first, after - 1), files=_as_tuples(listed)))
        for (first, after), listed in zip(pairwise(limits), files, strict=True)
    ]
