"""Cost of the monitor itself, from ``cost.jsonl`` of each rank and from the manifests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite, nan
from typing import NamedTuple

from probe.core.storage.directories import RankDirectory
from probe.core.storage.duckdb_reader import Connection
from probe.core.storage.layout import COST_COLUMNS, COSTS
from probe.core.storage.packed.run import packed_index
from probe.core.storage.side_files import PACKED_COSTS, costs_source, packed_costs_source


class RankCost(NamedTuple):
    """Cost on one rank."""

    rank: int
    steps: int
    """Collected steps."""
    step_seconds: float
    """Mean seconds of a collected step for hooks, drain and device; NaN if there is no file of costs."""
    overhead: float
    """Time of the monitor as a part of training's time without it, up to the last collected step; NaN if unknown."""
    faults: int
    """Errors inside the monitor, according to the manifest."""


def rank_costs(connection: Connection, directories: Sequence[RankDirectory], first: int) -> list[RankCost]:
    """Return the cost on each rank from step ``first`` on; none of ranks about which nothing is known."""
    sums_by_directory = _read(connection, directories, first)
    costs: dict[int, RankCost] = {}
    for directory in directories:  # a later directory of a rank continues an earlier one
        steps, seconds, overhead = sums_by_directory.get(str(directory.path), (0, 0.0, nan))
        before = costs.get(directory.rank, RankCost(directory.rank, 0, nan, nan, 0))
        number = before.steps + steps
        total = seconds + (before.step_seconds * before.steps if before.steps else 0.0)
        costs[directory.rank] = RankCost(
            directory.rank,
            number,
            total / number if number else nan,
            overhead if isfinite(overhead) else before.overhead,
            before.faults + sum(directory.manifest.faults.values()),
        )
    return [cost for _, cost in sorted(costs.items()) if cost.steps or cost.faults]


def _read(
    connection: Connection, directories: Sequence[RankDirectory], first: int
) -> Mapping[str, tuple[int, float, float]]:
    """Return the collected steps, the sum of their seconds and the last overhead of each directory that has a file."""
    source, paths = _source(directories)
    if not paths:
        return {}
    step, *parts, overhead = COST_COLUMNS
    query = (
        f"SELECT filename, count(*) FILTER ({step} >= ?), "  # noqa: S608 - our own words, paths are literals
        f"coalesce(sum({' + '.join(parts)}) FILTER ({step} >= ?), 0), arg_max({overhead}, {step}) "
        f"FROM {source} WHERE {step} IS NOT NULL GROUP BY filename"
    )
    rows = connection.execute(query, [first, first]).fetchall()
    return {paths[path]: (steps, seconds, nan if part is None else part) for path, steps, seconds, part in rows}


def _source(directories: Sequence[RankDirectory]) -> tuple[str, Mapping[str, str]]:
    """Return SQL that reads the costs, and for each file name in it the path of the directory."""
    packed = [directory for directory in directories if directory.packed is not None]
    if not packed:
        files = {path: str(d.path) for d in directories if (path := d.path / COSTS).is_file()}
        return costs_source(list(files)), {str(path): directory for path, directory in files.items()}
    root = packed[0].path.parent
    index = packed_index(root)
    if index.table(PACKED_COSTS) is None:
        return "", {}
    positions = index.directories["position"]
    folders = [(d.rank, positions[d.packed], d.path) for d in packed if d.packed is not None]
    return packed_costs_source(root, folders), {str(d.path): str(d.path) for d in packed}
