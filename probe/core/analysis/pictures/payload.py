"""Data of a page without a server: every cell, packed, and the names of rows, columns and files.

A number is packed as a whole ``mantissa`` times ten to the power of an ``exponent``, as decimal digits were written
into the files: ``static.js`` reads six digits back as the same six digits. Bytes of equal weight stand together, which
compresses better.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import numpy.typing as npt

from probe.core.analysis.pictures.heatmaps import Cells
from probe.core.analysis.pictures.layout import FEW_RANKS, Columns, RankPlan, SignalPlan
from probe.core.analysis.pictures.run_cells import CellWork, FileNames, RunFiles, SignalCells
from probe.core.analysis.pictures.survey import Survey
from probe.core.storage.directories import RecordedRun
from probe.core.storage.layout import line_beginning, names_of
from probe.core.storage.metrics_schema import row_query

MOST_FILES = 50_000
"""Most names of files that the page contains; if there are more, it contains none."""
RANK_DIGITS, MANY_RANK_DIGITS = 4, 2
"""Digits of the numbers of single ranks, of few of them and of many."""
LEAST_DIGITS = 3


def payload(
    cells: Iterable[tuple[SignalPlan, SignalCells]],
    run: RecordedRun,
    known: Survey,
    work: CellWork,
    files: RunFiles,
    look: Callable[[SignalPlan, Mapping[str, Cells]], object],
) -> dict[str, object]:
    """Data of the page: ``about``, its names, and ``cells``, packed, by ``map/{signal}/{op}``,
    ``ranks/{signal}/{op}/{row}``, ``rank`` (numbers of the ranks) and ``order/{order}``.

    Args:
        look: called with each signal and its cells.
    """
    packed: dict[str, object] = {}
    plan = work.plan
    digits = RANK_DIGITS if len(work.table.ranks) <= FEW_RANKS else MANY_RANK_DIGITS
    for n, (signal, found) in enumerate(cells):
        maps = found.heat.cells()
        look(signal, maps)
        packed.update((f"map/{n}/{m}", _packed(of_op, plan.columns)) for m, of_op in enumerate(maps.values()))
        for row in range(found.ranks.rows if found.ranks else 0):
            assert found.ranks is not None
            for op, (values, missing) in found.ranks.row_cells(row).items():
                packed[f"ranks/{n}/{signal.ops.index(op)}/{row}"] = packed_numbers(values, missing, digits)
    if plan.ranks:
        packed["rank"] = packed_array(work.table.ranks)
        orders = work.table.orders(plan.ranks.ranks_a_line)
        packed.update((f"order/{n}", packed_array(order.lines)) for n, order in enumerate(orders))
        packed.update((f"places/{n}", packed_array(work.places(stages))) for n, stages in enumerate(_stage_sets(work)))
        packed.update((f"attribute/{n}", packed_array(one.of)) for n, one in enumerate(work.table.attributes))
    return {"about": packed_text(json.dumps(_about(run, known, work, files))), "cells": packed}


def _packed(cells: Cells, columns: Columns) -> dict[str, object]:
    there = ~cells.missing
    places = cells.places
    return {
        "value": packed_numbers(cells.value, cells.missing),
        **({} if _alone(cells) else {"least": packed_numbers(cells.least, cells.missing, LEAST_DIGITS)}),
        "nan": packed_array(cells.nan),
        "inf": packed_array(cells.inf),
        "step": packed_array((places.step - columns.starts[None, :]) * there),
        "directory": packed_array(places.directory * there),
        "micro": packed_array(places.micro_step * there),
        "member": packed_array(places.member * there),
    }


def _alone(cells: Cells) -> bool:
    """Return true if the smallest magnitude of each cell is that of its only number."""
    sizes = np.where(np.isfinite(cells.value), np.abs(cells.value), np.nan)
    return np.array_equal(cells.least, sizes, equal_nan=True)


def _about(run: RecordedRun, known: Survey, work: CellWork, files: RunFiles) -> dict[str, object]:
    plan = work.plan
    lists: dict[FileNames, int] = {}
    signals = [
        {
            "signal": signal.signal,
            "ops": signal.ops,
            "labels": signal.labels,
            "members": [[[member.vpp_stage, member.name] for member in members] for members in signal.members],
            "microStepped": signal.micro_stepped,
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
        "columns": _columns(plan.columns),
        "last": known.last,
        "directories": [[directory.path.name, directory.rank] for directory in run.directories],
        "signals": signals,
        "files": list(lists) if few else [],
        "ranks": _about_ranks(work, plan.ranks) if plan.ranks else None,
    }


def _stage_sets(work: CellWork) -> list[tuple[int, ...]]:
    """Different sets of pipeline stages that have rows of the ranks."""
    ranks = work.plan.ranks
    return sorted({stages for signal in ranks.signals for stages in signal.stages}) if ranks else []


def _about_ranks(work: CellWork, plan: RankPlan) -> dict[str, object]:
    sets = {stages: n for n, stages in enumerate(_stage_sets(work))}
    return {
        "number": len(work.table.ranks),
        "ranksALine": plan.ranks_a_line,
        "lines": plan.lines,
        "columns": _columns(plan.columns),
        "orders": [order.title for order in work.table.orders(plan.ranks_a_line)],
        "attributes": [{"title": one.title, "names": one.names} for one in work.table.attributes],
        "signals": [
            {
                "ops": [signal.ops.index(op) for op in own.ops],
                "labels": own.labels,
                "rowOf": own.row_of,
                "places": [sets[stages] for stages in own.stages],
            }
            for signal, own in zip(work.plan.signals, plan.signals, strict=True)
        ],
    }


def packed_text(text: str) -> str:
    """Compress ``text``, in base 64."""
    return base64.b64encode(zlib.compress(text.encode("utf-8"), 9)).decode("ascii")


def _columns(columns: Columns) -> dict[str, object]:
    return {"starts": columns.starts.tolist(), "width": columns.width}


Array = npt.NDArray[np.float64]
Packed = dict[str, object]

MISSING, NAN, INF, MINUS_INF = range(4)
"""Mantissas of values that are no numbers, whose exponent is ``SPECIAL``."""
SPECIAL = 32767
FEW, MANY = 6, 9
"""Digits that files have, and digits that are kept if files have more."""


def packed_array(values: npt.ArrayLike) -> Packed:
    """Pack whole numbers of at most 32 bits: type and compressed bytes in base 64; the type alone if all are zero."""
    array = np.asarray(values)
    if not array.any():
        return {"type": 0}
    low, high = int(array.min()), int(array.max())
    size = next(size for size in (1, 2, 4) if -(1 << (8 * size - 1)) <= low and high < 1 << (8 * size - 1))
    octets = array.astype(f"<i{size}").view(np.uint8).reshape(-1, size).T
    return {"type": size, "bytes": base64.b64encode(zlib.compress(octets.tobytes(), 9)).decode("ascii")}


def packed_numbers(values: Array, missing: npt.NDArray[np.bool_], digits: int | None = None) -> Packed:
    """Pack ``values`` with ``digits`` digits; if None, with as many as they have, between ``FEW`` and ``MANY``."""
    if digits is None:
        mantissa, exponent = decimals(values, FEW)
        digits = FEW if _same(values, mantissa, exponent) else MANY
    mantissa, exponent = decimals(values, digits)
    for code, where in (
        (NAN, np.isnan(values)),
        (INF, np.isposinf(values)),
        (MINUS_INF, np.isneginf(values)),
        (MISSING, missing),
    ):
        mantissa[where], exponent[where] = code, SPECIAL
    return {"digits": digits, "mantissa": packed_array(mantissa), "exponent": packed_array(exponent)}


def decimals(values: Array, digits: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Split ``values`` into mantissas of ``digits`` digits and exponents to 10; both are 0 where there is no number."""
    usable = np.isfinite(values) & (values != 0)
    safe = np.where(usable, values, 1.0)
    exponent = np.floor(np.log10(np.abs(safe))).astype(np.int64) - (digits - 1)
    half = -exponent // 2  # ten to the whole power may be out of range
    mantissa = np.rint(safe * 10.0**half * 10.0 ** (-exponent - half)).astype(np.int64)
    over = np.abs(mantissa) >= 10**digits
    mantissa[over] //= 10
    exponent[over] += 1
    return np.where(usable, mantissa, 0), np.where(usable, exponent, 0)


def _same(values: Array, mantissa: npt.NDArray[np.int64], exponent: npt.NDArray[np.int64]) -> bool:
    half = exponent // 2
    with np.errstate(invalid="ignore"):
        back = mantissa * 10.0**half * 10.0 ** (exponent - half)
        return bool(np.all((np.abs(back - values) <= 1e-13 * np.abs(values)) | ~np.isfinite(values)))
