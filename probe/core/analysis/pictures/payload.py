"""Data of a page without a server: every cell, packed, and the names of rows, columns and files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from probe.core.analysis.pictures.cells import Array, CellArrays, Picture, Places
from probe.core.analysis.pictures.layout import FEW_RANKS, Columns, RankPlan, SignalPlan
from probe.core.analysis.pictures.packing import embedded, packed_text
from probe.core.analysis.pictures.run_cells import CellWork, FileNames, RunFiles, SignalCells
from probe.core.analysis.pictures.survey import Survey, principal
from probe.core.storage.directories import RecordedRun
from probe.core.storage.layout import line_beginning, names_of
from probe.core.storage.metrics_schema import row_query

MOST_FILES = 50_000
"""Most names of files that the page contains; if there are more, it contains none."""
RANK_DIGITS, MANY_RANK_DIGITS = 4, 2
"""Digits of the numbers of single ranks, of few of them and of many."""
LEAST_DIGITS = 3
ROW_DIGITS: tuple[tuple[int | None, int | None], ...] = ((None, None), (4, 4), (4, 3))
"""Digits of the numbers of rows, of the principal op and of the others: the first that have room, else the last."""
ROOM = 175_000
"""Characters of all packed rows, so that the page of a small run takes 300 kB."""


def payload(
    cells: Iterable[tuple[SignalPlan, SignalCells]],
    run: RecordedRun,
    known: Survey,
    work: CellWork,
    files: RunFiles,
    numbers: Picture | None,
    look: Callable[[SignalPlan, SignalCells], object],
) -> dict[str, object]:
    """Data of the page: ``about``, its names, and ``cells``, packed, by ``rows/{signal}/{op}``,
    ``ranks/{signal}/{op}/{row}``, ``ranks`` (ranks, also in each order and those of lines, and attributes) and
    ``numbers``.

    Args:
        numbers: curves of the numbers of the run; None if it has none.
        look: called with each signal and its cells.
    """
    packed: dict[str, str] = {}
    rows: dict[int, dict[str, str]] = {n: {} for n in range(len(ROW_DIGITS))}
    digits = RANK_DIGITS if len(work.table.ranks) <= FEW_RANKS else MANY_RANK_DIGITS
    for n, (signal, found) in enumerate(cells):
        look(signal, found)
        first = principal(signal.ops)
        for m, (op, of_op) in enumerate(found.heat.cells.items()):
            for kind, own in rows.items():
                kept = ROW_DIGITS[kind][op != first]
                own[f"rows/{n}/{m}"] = _packed(of_op, found.heat.places, work.plan.columns, kept)
        rows = _with_room(rows)
        for row in range(found.ranks.rows if found.ranks else 0):
            assert found.ranks is not None
            for op, of_row in found.ranks.row_cells(row).items():
                arrays = {"value": of_row.shown()} | ({"nan": of_row["nan"]} if of_row["nan"].any() else {})
                packed[f"ranks/{n}/{signal.ops.index(op)}/{row}"] = embedded(arrays, {"value": digits})
    if work.plan.ranks:
        packed["ranks"] = embedded(dict(_rank_arrays(work, work.plan.ranks)))
    if numbers is not None:
        kinds = ("minimum", "maximum", "nan", "inf")
        arrays = {kind: numbers.cells[kind] for kind in kinds}
        packed["numbers"] = embedded(arrays, dict.fromkeys(kinds[:2]))
    chosen, own = next(iter(rows.items()))
    about = {**_about(run, known, work, files, digits), "digits": ROW_DIGITS[chosen]}
    steps = None if numbers is None else numbers.steps
    return {"about": packed_text(json.dumps({**about, "numbers": steps})), "cells": own | packed}


def _with_room(rows: dict[int, dict[str, str]]) -> dict[int, dict[str, str]]:
    """Ways to pack rows that have room; the last one if none has."""
    last = len(ROW_DIGITS) - 1
    return {kind: own for kind, own in rows.items() if kind == last or sum(map(len, own.values())) <= ROOM}


def _packed(cells: CellArrays, packing: Places, columns: Columns, digits: int | None) -> str:
    there, places = ~cells.is_missing(), packing.of(cells)
    arrays = {
        "value": cells.shown(),
        "least": cells["least"],
        "nan": cells["nan"],
        "inf": cells["inf"],
        "step": (places.step - columns.starts[None, :]) * there,
        "directory": places.directory,
        "micro": places.micro_step,
        "member": places.member,
    }
    small = {
        name: array.astype("<i4") if array.dtype == np.int64 else array
        for name, array in arrays.items()
        if array.any() or name in ("value", "least", "directory")  # the page takes 0 for other arrays that it lacks
    }
    sizes = np.where(np.isfinite(arrays["value"]), np.abs(arrays["value"]), np.nan)
    if np.array_equal(arrays["least"], sizes, equal_nan=True):  # each cell has one number
        del small["least"]
    return embedded(small, {"value": digits, "least": LEAST_DIGITS})


def _rank_arrays(work: CellWork, plan: RankPlan) -> Iterator[tuple[str, Array]]:
    ranks = work.table.ranks.astype("<i4")
    first = ranks[:: plan.ranks_a_line]
    yield "rank", ranks
    for n, order in enumerate(work.table.orders(plan.ranks_a_line)):
        yield f"order/{n}", first[order.lines]
    for n, stages in enumerate(_stage_sets(work)):
        yield f"lines/{n}", first[work.places(stages) >= 0]
    for n, attribute in enumerate(work.table.different()):
        yield f"attribute/{n}", attribute.of.astype("<i4")


def _about(run: RecordedRun, known: Survey, work: CellWork, files: RunFiles, digits: int) -> dict[str, object]:
    plan = work.plan
    lists: dict[FileNames, int] = {}
    signals = [
        {
            "members": [[[member.vpp_stage, member.name] for member in members] for members in signal.members],
            "line": line_beginning("{stage}", "{name}", "{step}", "{micro}" * signal.micro_stepped),
            "query": row_query(signal.signal, "{name}", "{step}"),
            "names": names_of(signal.signal),
            "files": [
                lists.setdefault(files.files.get(signal.signal, {}).get(number, ()), len(lists))
                for number in range(len(run.directories))
            ],
        }
        for signal in plan.signals
    ]
    few = sum(map(len, lists)) <= MOST_FILES
    return {
        "steps": plan.columns.spans(known.last),
        "directories": [[directory.path.name, directory.rank] for directory in run.directories],
        "signals": signals,
        "files": list(lists) if few else [],
        "ranks": _about_ranks(work, plan.ranks, known.last, digits) if plan.ranks else None,
    }


def _stage_sets(work: CellWork) -> list[tuple[int, ...]]:
    """Different sets of pipeline stages that have rows of the ranks."""
    ranks = work.plan.ranks
    return sorted({stages for signal in ranks.signals for stages in signal.stages}) if ranks else []


def _about_ranks(work: CellWork, plan: RankPlan, last: int, digits: int) -> dict[str, object]:
    sets = {stages: n for n, stages in enumerate(_stage_sets(work))}
    return {
        "digits": digits,
        "ranksALine": plan.ranks_a_line,
        "steps": plan.columns.spans(last),
        "attributes": [{"title": one.title, "names": one.names} for one in work.table.different()],
        "signals": [{"rowOf": own.row_of, "lines": [sets[stages] for stages in own.stages]} for own in plan.signals],
    }
