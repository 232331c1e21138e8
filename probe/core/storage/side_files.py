"""Files beside the rows of a rank: lines of JSON, or the table that a packed run has of those of all ranks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from probe.core.storage.batches import Readable
from probe.core.storage.directories import RankDirectory
from probe.core.storage.files import opened
from probe.core.storage.layout import COST_COLUMNS, UPDATE_COLUMNS
from probe.core.storage.location import Place
from probe.core.storage.packed.run import packed_index
from probe.core.storage.problems import Problems
from probe.core.storage.sql import listed, literal, pattern_of

T = TypeVar("T")
LONGEST = 1 << 20
"""Bytes of a line at most."""
FETCHED = 1000


def whole_lines(path: Place, subject: str, problems: Problems) -> Iterator[bytes]:
    """Yield the lines of a file, none if there is no file. An unfinished last line may be in the making.

    Args:
        subject: their subject, for messages.
    """
    if not path.is_file():
        return
    try:
        with opened(path) as file:
            yield from (line for line in iter(lambda: file.readline(LONGEST), b"") if line.endswith(b"\n"))
    except OSError as error:
        problems.add(path, f"{error}; {subject} are unknown")


def parsed_lines(
    lines: Iterable[bytes], parse: Callable[[Any], T], path: Place, subject: str, problems: Problems
) -> Iterator[T]:
    """Yield what ``parse`` makes of the JSON of each line; lines at which it fails are counted in ``problems``."""
    bad = 0
    for line in lines:
        try:
            parsed = parse(json.loads(line))
        except (ValueError, RecursionError, KeyError, TypeError):
            bad += 1
        else:
            yield parsed
    if bad:
        problems.add(path, f"lines that cannot be read, about {subject}: {bad}")


def packed_records(
    rows: Readable, directory: RankDirectory, name: str, subject: str, more: str
) -> Iterator[dict[str, Any]]:
    """Yield the rows about a directory in a table of a packed run; none if the run has no such table.

    Args:
        rows: reader of the run's rows, with a ``connection``.
        name: file of the table.
        more: SQL after the condition of the directory.
    """
    index, connection = packed_index(directory.path.parent), getattr(rows, "connection", None)
    if connection is None or (table := index.table(name)) is None:
        return
    place = directory.rank, int(index.directories["position"][directory.packed or 0])
    source = f"read_parquet({literal(pattern_of(table))})"
    cursor = connection.cursor()
    try:
        try:
            cursor.execute(f"SELECT * FROM {source} WHERE rank = ? AND directory = ? {more}", place)  # noqa: S608
        except Exception as error:  # noqa: BLE001 - of DuckDB or of a storage; it is recorded
            rows.problems.add(table, f"{' '.join(str(error).split())}; {subject} are unknown")
            return
        names = [column[0] for column in cursor.description]
        while some := cursor.fetchmany(FETCHED):
            yield from (dict(zip(names, cells, strict=True)) for cells in some)
    finally:
        cursor.close()


PACKED_COSTS = "costs.parquet"
"""Table of a packed run: the lines of all these files, with ``rank`` and ``directory`` as in packed files."""


def costs_source(paths: Sequence[Place]) -> str:
    """Return SQL that reads such files with the columns of :data:`COST_COLUMNS`, those of :data:`UPDATE_COLUMNS` and
    ``filename``; lines that cannot be parsed are left out."""
    columns = ", ".join(f"{name}: '{kind}'" for name, kind in (COST_COLUMNS | UPDATE_COLUMNS).items())
    return (
        f"read_json({listed(list(paths))}, format = 'newline_delimited', columns = {{{columns}}}, "
        "ignore_errors = true, filename = true)"
    )


def packed_costs_source(root: Place, folders: Sequence[tuple[int, int, Place]]) -> str:
    """Return SQL that reads the costs of some directories of a packed run, with the directory's path as ``filename``.

    Args:
        folders: rank, position and path of each directory.
    """
    places = ", ".join(f"({rank}, {position}, {literal(str(path))})" for rank, position, path in folders)
    return (
        f"(SELECT c.* EXCLUDE (rank, directory), f.filename "  # noqa: S608 - numbers and literals
        f"FROM read_parquet({literal(pattern_of(root / PACKED_COSTS))}) AS c "
        f"JOIN (VALUES {places}) AS f(rank, directory, filename) USING (rank, directory))"
    )
