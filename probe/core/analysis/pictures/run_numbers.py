"""Curves of the numbers of the run."""

from __future__ import annotations

from collections.abc import Sequence

from probe.core.analysis.pictures.cells import CellArrays, Picture, Span, cell_query, fetched, picture
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
)
from probe.core.storage.duckdb_reader import Rows
from probe.core.storage.sql import literal

FIRST = (
    *(LOSS, VAL_LOSS, GRAD_NORM, LEARNING_RATE),
    *(LOSS_SCALE, THROUGHPUT, TOKENS_PER_SECOND, STEP_SECONDS),
)
"""Numbers whose curves come first, in this order."""


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
    query = cell_query(keys, "v.value", f"{rows.view(RUN)} AS v", where)
    return picture(names, fetched(rows.connection, query), points)


def _of_rank(rank: int | None) -> str:
    return "true" if rank is None else f"rank = {rank}"
