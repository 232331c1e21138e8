"""Packed run: the rows of all ranks in a few large Parquet files, and one index with everything that readers else look
for in directories, manifests, headers and footers. :mod:`pack` writes them.

``{signal}/ranks={a}-{b}/steps={c}-{d}.parquet`` holds rows by step, rank, and within a step of a rank in the order in
which the rank wrote them: that is the order of execution, by which causes are ordered. (Where steps of a rank do not
ascend, all its rows are in that order.) Besides the columns of tables it
has ``rank``, ``directory``, the position of the directory among those of the rank (not 0 only after a resume), and
``file``, the number of the name of the file that the rank wrote.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from probe.core.storage.files import check_permitted, opened
from probe.core.storage.location import Place
from probe.core.storage.manifest import MOST_RANKS, Manifest
from probe.core.storage.problems import Problem, Problems
from probe.core.storage.sql import listed, quoted
from probe.core.storage.table_files import PackedRows, TableFile

INDEX = "index.json.gz"
FILES_TABLE, TEXTS_TABLE = "files.parquet", "texts.parquet"
"""Tables of a packed run: facts about each file that was packed, and the texts that lay beside these files."""
SCHEMA = 1
"""Version of the index; increased when a reader of the older one would be wrong."""
PACKED = "packed"
"""Format of a :class:`TableFile` whose rows are in a file of a packed run."""
RANK, DIRECTORY, FILE = "rank", "directory", "file"
"""Columns of packed files besides those of tables."""
_BASE = "\0"
"""Stands for the folder of the run in messages."""
MOST_BYTES = 1 << 30
"""Bytes of an index, unpacked, at most."""
STAGES = ("found", "chosen", "opened", "closed")
"""Stages at which a reader of the unpacked run records a problem: it looks for directories, chooses a run,
opens and closes files."""


class WrittenName(NamedTuple):
    """A name that files of one signal have, on any number of ranks."""

    name: str
    first: int
    last: int
    part: int
    format: str


class PackedBlock(NamedTuple):
    """One file of a packed run."""

    path: str
    """Place within the run."""
    ranks: tuple[int, int]
    """The first and the last rank of which it may have rows."""
    steps: tuple[int, int]
    """The first and the last step in it."""
    rows: int
    bytes: int
    columns: tuple[str, ...]
    sha256: str


@dataclass(frozen=True)
class PackedSignal:
    """Files of one signal."""

    numbers: tuple[str, ...]
    """Ops and other numbers, in the order of a reader of the run as it was."""
    names: tuple[WrittenName, ...]
    """In the order of their steps."""
    columns: tuple[tuple[str, ...], ...]
    sets: tuple[tuple[tuple[int, int, int], ...], ...]
    """Different sets of files that directories have: of each file the number of its name, of its columns, and of its
    block among those of the same ranks."""
    of: tuple[int, ...]
    """For each directory the number of its set; -1 if it has no file."""
    blocks: tuple[PackedBlock, ...]
    """In the order of ranks, then steps."""

    @cached_property
    def _bands(self) -> tuple[list[int], list[list[PackedBlock]]]:
        """The first rank of each band of ranks, ascending, and the files of the band."""
        bands: dict[tuple[int, int], list[PackedBlock]] = {}
        for block in self.blocks:
            bands.setdefault(block.ranks, []).append(block)
        return [low for low, _ in sorted(bands)], [bands[band] for band in sorted(bands)]

    def blocks_of(self, rank: int) -> list[PackedBlock]:
        """Return the files that may have rows of a rank, in the order of steps."""
        lows, blocks = self._bands
        at = bisect_right(lows, rank) - 1
        return blocks[at] if at >= 0 and rank <= blocks[at][0].ranks[1] else []


class PackedIndex:
    """The index of a packed run.

    Args:
        root: folder of the run.
        fields: as the index has them.
    """

    def __init__(self, root: Place, fields: Mapping[str, Any]) -> None:
        self.root = root
        self._fields = fields
        self.complete = bool(fields["complete"])
        """False while the run is followed."""
        self.directories: Mapping[str, list[Any]] = fields["directories"]
        """Columns ``name, rank, position, time, began, first_step, written, manifest``; ``written``: it has rows."""

    def manifest(self, number: int) -> Manifest:
        """Return the manifest of a directory."""
        values = self._fields["values"]
        shape, *numbers = self.directories["manifest"][number]
        manifest_of_directory = Manifest(
            zip(self._fields["shapes"][shape], map(values.__getitem__, numbers), strict=True)
        )
        if (groups := manifest_of_directory.get("groups")) is not None:
            manifest_of_directory["groups"] = {name: values[at] for name, at in groups.items()}
        return manifest_of_directory

    @cached_property
    def _highest(self) -> int:
        return int(max(self.directories["rank"]))

    @cached_property
    def signals(self) -> dict[str, PackedSignal]:
        """Files by signal, in the order of a reader of the run as it was."""
        return {name: _signal(fields) for name, fields in self._fields["signals"].items()}

    def table(self, name: str) -> Place | None:
        """Return the path of a table besides rows; None if the run has none. Where the index does not list tables, as
        of runs that were packed earlier, the folder is asked for it."""
        path, sizes = self.root / name, self._fields.get("tables")
        if sizes is None:
            return path if path.is_file() else None
        if name not in sizes:
            return None
        return path if isinstance(path, Path) else path.of_size(int(sizes[name]))

    def record_problems(self, stage: str, problems: Problems, directories: Collection[int] | None = None) -> None:
        """Record the problems that a reader of the unpacked run finds at a stage, one of :data:`STAGES`.

        Args:
            directories: directories whose problems are recorded; None for all.
        """
        names = None if directories is None else {self.directories["name"][n] for n in directories}
        for path, line, text, skipped in self._fields["problems"][stage]:
            if names is None or path.partition("/")[0] in names:
                problems.add(self.root / path, text.replace(_BASE, str(self.root)), line, skipped)

    def blocks(self, signal: str, first: int, last: int) -> Iterator[TableFile]:
        """Yield the packed files that may have rows of the ranks from ``first`` to ``last``."""
        for block in self.signals[signal].blocks:
            if block.ranks[0] <= last and first <= block.ranks[1]:
                yield TableFile(
                    self.root / block.path,
                    signal,
                    *block.steps,
                    part=0,
                    format=PACKED,
                    columns=block.columns,
                    ranks=(block.ranks[0], min(block.ranks[1], self._highest)),
                    rows=block.rows,
                    bytes=block.bytes,
                )

    def damaged(self, first: int = 0, last: int = MOST_RANKS) -> Iterator[Place]:
        """Yield the packed files that are not as they were written, among those that may have rows of the ranks from
        ``first`` to ``last``."""
        blocks = (block for signal in self.signals.values() for block in signal.blocks)
        for block in blocks:
            path = self.root / block.path
            if block.ranks[1] < first or last < block.ranks[0]:
                continue
            if not path.is_file() or path.stat().st_size != block.bytes or digest(path) != block.sha256:
                yield path

    def files_of(self, signal: str, number: int, lost: Collection[Place] = ()) -> Iterator[TableFile]:
        """Yield the files of a signal that the rank has written in a directory, in the order of steps; their rows are
        read from packed files.

        Args:
            lost: packed files that cannot be read.
        """
        fields = self.signals[signal]
        numbers = fields.sets[fields.of[number]] if fields.of[number] >= 0 else ()
        rank, position = self.directories["rank"][number], self.directories["position"][number]
        folder, blocks = self.root / self.directories["name"][number], fields.blocks_of(rank)
        for name, columns, at in numbers:
            written, block = fields.names[name], blocks[at]
            place = PackedRows(self.root / block.path, rank, position, name)
            if place.path in lost:
                continue
            yield TableFile(
                folder / written.name,
                signal,
                written.first,
                written.last,
                written.part,
                PACKED,
                fields.columns[columns],
                packed=place,
            )


def _signal(fields: Mapping[str, Any]) -> PackedSignal:
    return PackedSignal(
        tuple(fields["numbers"]),
        tuple(WrittenName(*name) for name in fields["names"]),
        tuple(map(tuple, fields["columns"])),
        tuple(tuple(map(tuple, files)) for files in fields["sets"]),
        tuple(fields["of"]),
        tuple(
            PackedBlock(*(tuple(part) if isinstance(part, list) else part for part in block))  # type: ignore[arg-type]
            for block in fields["blocks"]
        ),
    )


def packed_source(files: Sequence[TableFile], source_of: Callable[[Place, int], str] | None = None) -> str:
    """Return the SQL that reads packed files, or the files that ranks wrote, to be put after FROM; rows of a directory
    come in the order in which its rank wrote them.

    Args:
        source_of: returns the SQL that reads a packed file of which the rows of one rank are wanted; None for the file.
    """
    places = [file.packed for file in files if file.packed is not None]
    paths = list(dict.fromkeys([place.path for place in places] or [file.path for file in files]))
    ranks, columns = {place.rank for place in places}, {file.columns for file in files}
    if source_of is None or len(ranks) != 1 or len(columns) != 1:
        return _of(f"read_parquet({listed(paths)})", "*", places)
    [rank], cells = ranks, ", ".join(map(quoted, files[0].columns))
    return f"({' UNION ALL '.join(_of(source_of(path, rank), cells, places) for path in paths)})"


def _of(source: str, columns: str, places: Iterable[PackedRows]) -> str:
    """Return the SQL for the rows of ``places`` in a source; for all rows if there are none."""
    by_directory: dict[tuple[int, int], list[int]] = {}
    for place in places:
        by_directory.setdefault((place.rank, place.directory), []).append(place.name)
    conditions = [
        f"({RANK} = {rank} AND {DIRECTORY} = {position} AND {_among(FILE, names)})"
        for (rank, position), names in by_directory.items()
    ]
    where = " OR ".join(conditions)
    return f"(SELECT {columns} FROM {source} WHERE {where})" if conditions else source  # noqa: S608 - quoted, numbers


def _among(column: str, numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    if high - low + 1 == len(set(numbers)):
        return f"{column} BETWEEN {low} AND {high}"
    return f"{column} IN ({', '.join(map(str, numbers))})"


def packed_files(index: PackedIndex, directories: Sequence[Any]) -> dict[str, list[tuple[int, TableFile]]]:
    """Return the packed files that may have rows of some directories, each with the index of the first of these."""
    ranks = sorted((directory.rank, n) for n, directory in enumerate(directories))
    listed_files = {
        signal: [(_first_from(ranks, file), file) for file in index.blocks(signal, ranks[0][0], ranks[-1][0])]
        for signal in index.signals
    }
    return {signal: of_signal for signal, of_signal in listed_files.items() if of_signal}


def _first_from(ranks: Sequence[tuple[int, int]], file: TableFile) -> int:
    """Return the index of the first directory of which a packed file may have rows, among sorted ranks and indices."""
    first = file.ranks[0] if file.ranks else 0
    return ranks[min(bisect_left(ranks, (first, -1)), len(ranks) - 1)][1]


def digest(path: Place) -> str:
    """Return the SHA-256 of a file."""
    made = hashlib.sha256()
    with path.open("rb") as file:
        for data in iter(lambda: file.read(1 << 20), b""):
            made.update(data)
    return made.hexdigest()


def is_packed(root: Place) -> bool:
    """Return whether ``root`` is the folder of a packed run."""
    return (root / INDEX).is_file()


def packed_index(root: Place) -> PackedIndex:
    """Return the index of the packed run in ``root``; it is read again when it has changed.

    Raises:
        ValueError: if it cannot be read, or is of a later version.
    """
    path = root / INDEX
    try:
        status = path.stat()
        return _read(root, (status.st_mtime, status.st_size, getattr(root, "store", None)))
    except (OSError, EOFError, ValueError, KeyError, TypeError, IndexError) as error:
        raise ValueError(f"{path}: expected the index of a packed run; {error}: pack the run again") from error


@lru_cache(maxsize=8)
def _read(root: Place, _: tuple[float, int, Any]) -> PackedIndex:
    with gzip.GzipFile(fileobj=_bytes(root / INDEX)) as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"it is larger than {MOST_BYTES >> 20} MiB")
    fields = json.loads(data)
    if not isinstance(fields, dict) or not isinstance(fields.get("schema"), int):
        raise ValueError("it has no schema")
    if fields["schema"] > SCHEMA:
        raise ValueError(f"schema {fields['schema']} is of a newer version; this one reads up to {SCHEMA}")
    index = PackedIndex(root, fields)
    if isinstance(root, Path):
        for block in (block for signal in index.signals.values() for block in signal.blocks):
            check_permitted(root / block.path)
    return index


def _bytes(path: Place) -> Any:
    with opened(path) as file:
        return io.BytesIO(file.read())


@dataclass
class Interned:
    """Values of which each is kept once, by number."""

    values: list[Any] = field(default_factory=list)
    _known: dict[str, int] = field(default_factory=dict)

    def number(self, value: Any) -> int:
        """Return the number of ``value``."""
        text = json.dumps(value, sort_keys=False)
        at = self._known.setdefault(text, len(self.values))
        if at == len(self.values):
            self.values.append(value)
        return at


def index_fields(
    directories: Mapping[str, Sequence[Any]],
    manifests: Sequence[Manifest],
    signals: Mapping[str, PackedSignal],
    problems: Mapping[str, Sequence[Problem]],
    base: Place,
    complete: bool,
    tables: Mapping[str, int],
) -> dict[str, Any]:
    """Return the fields of an index.

    Args:
        base: folder that paths of problems are relative to.
        tables: sizes in bytes of the tables besides rows, by the names of their files.
    """
    values, shapes = Interned(), Interned()
    rows = []
    for manifest in manifests:
        fields_of_manifest = dict(manifest)
        if isinstance(fields_of_manifest.get("groups"), Mapping):
            fields_of_manifest["groups"] = {
                name: values.number(list(ranks)) for name, ranks in fields_of_manifest["groups"].items()
            }
        rows.append([shapes.number(list(fields_of_manifest)), *map(values.number, fields_of_manifest.values())])
    return {
        "schema": SCHEMA,
        "complete": complete,
        "directories": {**directories, "manifest": rows},
        "signals": {name: vars_of(signal) for name, signal in signals.items()},
        "problems": {stage: [_relative(problem, base) for problem in problems.get(stage, ())] for stage in STAGES},
        "shapes": shapes.values,
        "values": values.values,
        "tables": dict(tables),
    }


def vars_of(signal: PackedSignal) -> dict[str, Any]:
    """Return the fields of a signal in an index."""
    return {name: getattr(signal, name) for name in ("numbers", "names", "columns", "sets", "of", "blocks")}


def _relative(problem: Problem, base: Place) -> list[Any]:
    whole = str(problem.path)
    path = "" if whole == str(base) else whole.removeprefix(f"{base}/")
    return [path, problem.line, problem.what.replace(str(base), _BASE), problem.skipped]


def index_bytes(fields: Mapping[str, Any]) -> bytes:
    """Return an index as it is written: the same bytes for the same fields."""
    text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
    return gzip.compress(text.encode("utf-8", "surrogatepass"), mtime=0)
