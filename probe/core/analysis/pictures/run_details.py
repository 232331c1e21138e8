"""A run as the page describes it: its ranks and signals, and of the manifests fields, configuration and own cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from probe.core.analysis.pictures.cells import CellArrays, Picture, Span, cell_query, fetched, picture
from probe.core.analysis.pictures.rank_table import RankTable
from probe.core.naming import (
    GRAD_NORM,
    LEARNING_RATE,
    LOSS,
    LOSS_SCALE,
    RUN,
    STEP_SECONDS,
    THROUGHPUT,
    TOKENS_PER_SECOND,
    VAL_LOSS,
    signal_of,
)
from probe.core.storage.directories import RankDirectory, RecordedRun
from probe.core.storage.duckdb_reader import Rows
from probe.core.storage.layout import ranks_text
from probe.core.storage.manifest import FACTS
from probe.core.storage.sql import literal

MOST_COSTS = 256
"""Most directories whose cost is listed."""
DIFFERENT = 8
"""Most different values of ranks that are shown."""
FIRST = (
    *(LOSS, VAL_LOSS, GRAD_NORM, LEARNING_RATE),
    *(LOSS_SCALE, THROUGHPUT, TOKENS_PER_SECOND, STEP_SECONDS),
)
"""Numbers whose curves come first, in this order."""


def run_description(run: RecordedRun, table: RankTable) -> dict[str, object]:
    """Return the fields of a run that need no rows: ``facts`` by their titles, as its first directory has them, orders
    of its ranks, and ranks as text."""
    return {
        "facts": facts_of([run.directories[0].manifest]),
        "orders": [order.title for order in table.orders()],
        "rank_list": ranks_text(run.ranks),
        "missing_ranks": ranks_text(run.missing),
    }


def signal_description(name: str, ops: Sequence[str], rows: Sequence[str], micro_stepped: bool) -> dict[str, object]:
    """Return the fields of a signal.

    Args:
        rows: labels in the order of the model.
        micro_stepped: True if rows of a step are distinguished by micro steps.
    """
    about = signal_of(name)
    fields = {"name": name, "meaning": about.meaning, "phase": about.phase, "micro_stepped": micro_stepped}
    return {**fields, "ops": list(ops), "rows": list(rows)}


def run_details(run: RecordedRun) -> dict[str, object]:
    """Return ``facts`` and ``configuration`` as names with values, and ``costs``: a row each for the directories with
    most time a step on the training thread, of ``ended``; ``directories`` is the number of all."""
    manifests = [directory.manifest for directory in run.directories]
    ended = [directory for directory in run.directories if directory.manifest.cost_seconds]
    flat = [dict(_flat(manifest.config)) for manifest in manifests if manifest.config]
    costly = sorted(ended, key=_seconds_a_step, reverse=True) if len(ended) > MOST_COSTS else ended
    return {
        "facts": [*map(list, facts_of(manifests).items())],
        "configuration": [[key, agreed(flat, key)] for key in dict.fromkeys(key for config in flat for key in config)],
        "directories": len(run.directories),
        "ended": len(ended),
        "costs": [_cost(directory) for directory in costly[:MOST_COSTS]],
        "missing": ranks_text(run.missing),
    }


def facts_of(manifests: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Facts about a run for people, by their titles."""
    return {title: agreed(manifests, key) for key, title in FACTS.items() if any(key in each for each in manifests)}


def agreed(manifests: Sequence[Mapping[str, Any]], key: str) -> str:
    """Value under ``key`` as text; the different ones if manifests differ."""
    values = list(dict.fromkeys(_text(manifest[key]) for manifest in manifests if key in manifest))
    shown = " | ".join(values[:DIFFERENT])
    return f"{shown} | +{len(values) - DIFFERENT}" if len(values) > DIFFERENT else shown


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _flat(config: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _seconds_a_step(directory: RankDirectory) -> float:
    hooks, drain, _, steps = _cost_seconds(directory)
    return (hooks + drain) / steps if steps else 0.0


def _cost_seconds(directory: RankDirectory) -> tuple[float, ...]:
    """Seconds of hooks, drain and delivery, and the number of steps."""
    seconds = directory.manifest.cost_seconds
    cells = (seconds.get(key) for key in ("hooks", "drain", "delivery", "steps"))
    return tuple(float(cell) if isinstance(cell, (int, float)) else 0.0 for cell in cells)


def _cost(directory: RankDirectory) -> list[object]:
    """Rank, steps, seconds of hooks, drain, milliseconds a step, seconds of delivery, findings and faults."""
    hooks, drain, delivery, steps = _cost_seconds(directory)
    faults = ", ".join(f"{place}: {number}" for place, number in directory.manifest.faults.items())
    found = directory.manifest.findings
    step = f"{1000 * (hooks + drain) / steps:.2f}" if steps else ""
    numbers = [f"{steps:.0f}", f"{hooks:.2f}", f"{drain:.2f}", step, f"{delivery:.2f}"]
    return [directory.rank, *numbers, "" if found is None else found, faults]


def number_names(rows: Rows, rank: int | None = None) -> list[str]:
    """Return the names of the numbers of the run, in the order in which the page shows them.

    Args:
        rank: rank that has them; None for any.
    """
    if RUN not in rows.signals:
        return []
    query = f"SELECT DISTINCT name FROM {rows.view(RUN)} WHERE {_of_rank(rank)}"  # noqa: S608 - our own words
    names = [name for (name,) in rows.connection.execute(query).fetchall()]
    return sorted(names, key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name))


def number_curves(rows: Rows, names: Sequence[str], span: Span, points: int, rank: int | None = None) -> Picture:
    """Return the curves of numbers of the run, a line each.

    Args:
        points: points at most, each of as many steps that have a number.
        rank: rank whose numbers they are; None for all ranks together.
    """
    if RUN not in rows.signals or not names:
        return Picture(list(names), [], CellArrays.of(len(names), 0), True)
    listed = ", ".join(map(literal, names))
    keys = {"line": f"list_position([{listed}], v.name) - 1", "block": "v.step"}
    where = f"{_of_rank(rank)} AND v.name IN ({listed}) AND {span.sql()}"
    query = cell_query(keys, {"": "v.value"}, f"{rows.view(RUN)} AS v", where)
    return picture(names, fetched(rows.connection, query), points)


def _of_rank(rank: int | None) -> str:
    return "true" if rank is None else f"rank = {rank}"
