"""Files of the monitor's own cost and of updates, read by DuckDB: one directory's each, or the table that a packed run
has of all."""

from __future__ import annotations

from collections.abc import Sequence

from probe.core.storage.layout import COST_COLUMNS, UPDATE_COLUMNS
from probe.core.storage.location import Place
from probe.core.storage.sql import listed, literal, pattern_of

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
