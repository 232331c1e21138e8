"""Data for the scripts of a report: every cell, packed, and the names of rows, columns and files.

A number is packed as a whole ``mantissa`` times ten to the power of an ``exponent``, as decimal digits were written
into the files: ``cells.js`` reads six digits back as the same six digits. Bytes of equal weight stand together, which
compresses better.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from probe.core.analysis.report.findings import Mark
from probe.core.analysis.report.heatmaps import Cells, LineSums
from probe.core.analysis.report.layout import Columns, SignalPlan
from probe.core.analysis.report.page import packed_text
from probe.core.analysis.report.run_cells import CellWork, FileNames, RunFiles, SignalCells
from probe.core.analysis.report.survey import Survey, principal
from probe.core.naming import signal_of
from probe.core.storage.directories import RecordedRun
from probe.core.storage.layout import line_beginning, names_of
from probe.core.storage.metrics_schema import row_query

MOST_FILES = 50_000
"""Most names of files that the page contains; if there are more, it contains none."""
RANK_DIGITS = 4
FINE_DIGITS = 2
LEAST_DIGITS = 3
BAD_OF_A_SIGNAL = 100
"""Most rows of a signal whose first numbers that are not finite are listed."""


def payload(
    cells: Iterable[tuple[SignalPlan, SignalCells]], run: RecordedRun, known: Survey, work: CellWork, files: RunFiles
) -> tuple[dict[str, object], list[Mark]]:
    """Data for the scripts of the page, and the first number of each row that is not finite."""
    packed: dict[str, object] = {}
    bad: list[Mark] = []
    plan = work.plan
    for n, (signal, found) in enumerate(cells):
        maps = found.heat.cells()
        bad += _first_bad(maps, signal, run)
        packed.update((f"map/{n}/{m}", _packed(of_op, plan.columns)) for m, of_op in enumerate(maps.values()))
        for store, lines in enumerate(found.lines):
            name = f"ranks/{n}" if plan.fine is None else f"groups/{store}/{n}"
            for op, (values, missing) in lines.cells().items():
                packed[f"{name}/{signal.ops.index(op)}"] = packed_numbers(values, missing, RANK_DIGITS)
        if found.fine:
            packed.update(packed_lines(n, signal, found.fine))
    if plan.fine:
        packed.update(packed_attributes(work))
    return {"about": packed_text(json.dumps(_about(run, known, work, files))), "cells": packed}, bad


def _packed(cells: Cells, columns: Columns) -> dict[str, object]:
    there = ~cells.missing
    places = cells.places
    return {
        "value": packed_numbers(cells.value, cells.missing),
        "least": packed_numbers(cells.least, cells.missing, LEAST_DIGITS),
        "bad": packed_array(cells.bad),
        "step": packed_array((places.step - columns.starts[None, :]) * there),
        "directory": packed_array(places.directory * there),
        "micro": packed_array(places.micro_step * there),
        "member": packed_array(places.member * there),
    }


def _first_bad(maps: Mapping[str, Cells], signal: SignalPlan, run: RecordedRun) -> Iterator[Mark]:
    """First number of each row that is not finite, of the principal op, else of another."""
    listed: set[int] = set()
    first = principal(signal.ops)
    for op in sorted(maps, key=lambda op: op != first):
        cells = maps[op]
        there = cells.bad > 0
        for row in np.flatnonzero(there.any(axis=1)).tolist():
            if row in listed or len(listed) >= BAD_OF_A_SIGNAL:
                continue
            listed.add(row)
            column = int(np.argmax(there[row]))
            step, directory, micro_step, member = (int(array[row, column]) for array in cells.places)
            about = signal.members[row][member]
            value = float(cells.value[row, column])
            rank = run.directories[directory].rank
            micro = micro_step if signal.micro_stepped else None
            yield Mark("", signal.signal, about.name, op, value, step, rank, micro, "", "", about.vpp_stage, row)


def _about(run: RecordedRun, known: Survey, work: CellWork, files: RunFiles) -> dict[str, object]:
    plan, ranks = work.plan, run.ranks
    lists: dict[FileNames, int] = {}
    signals = [
        {
            "signal": signal.signal,
            "meaning": signal_of(signal.signal).meaning,
            "phase": signal_of(signal.signal).phase,
            "ops": signal.ops,
            "rankOps": [signal.ops.index(op) for op in signal.rank_ops],
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
    groups = [ranks[at : at + plan.ranks_a_line] for at in range(0, len(ranks), plan.ranks_a_line)]
    return {
        "columns": _columns(plan.columns),
        "rankColumns": _columns(plan.rank_columns),
        "last": known.last,
        "lines": [f"rank {own[0]}" if len(own) == 1 else f"ranks {own[0]}-{own[-1]}" for own in groups],
        "directories": [[directory.path.name, directory.rank] for directory in run.directories],
        "signals": signals,
        "files": list(lists) if few else [],
        **({"fine": about_lines(work)} if plan.fine else {}),
    }


def packed_lines(n: int, signal: SignalPlan, fine: LineSums) -> Iterator[tuple[str, object]]:
    """Second level of a signal, each row by itself: the page unpacks the one that is shown."""
    for row in range(fine.rows):
        for op, (values, missing) in fine.row_cells(row).items():
            packed = packed_numbers(values, missing, FINE_DIGITS)
            yield f"fine/{n}/{signal.ops.index(op)}/{row}", packed


def packed_attributes(work: CellWork) -> Iterator[tuple[str, object]]:
    """Numbers and attributes of the ranks, and the orders of their lines."""
    yield "rank/number", packed_array(work.table.ranks)
    for n, attribute in enumerate(work.table.attributes):
        yield f"rank/{n}", packed_array(attribute.of)
    for n, order in enumerate(work.orders):
        yield f"order/{n}", packed_array(order.lines)
    for n, stages in enumerate(_stage_sets(work)):
        yield f"places/{n}", packed_array(work.places(stages))


def _stage_sets(work: CellWork) -> list[tuple[int, ...]]:
    """Different sets of pipeline stages that have rows of the second level."""
    fine = work.plan.fine
    return sorted({stages for signal in fine.signals for stages in signal.stages}) if fine else []


def about_lines(work: CellWork) -> dict[str, object]:
    """Return the fields of the page about the lines of ranks."""
    fine = work.plan.fine
    assert fine is not None
    sets = {stages: n for n, stages in enumerate(_stage_sets(work))}
    return {
        "ranks": len(work.table.ranks),
        "ranksALine": fine.ranks_a_line,
        "lines": fine.lines,
        "linesALine": fine.lines_a_line,
        "columns": _columns(fine.columns),
        "orders": [{"title": order.title, "store": order.store} for order in work.orders],
        "attributes": [{"title": one.title, "names": one.names} for one in work.table.attributes],
        "signals": [
            {
                "ops": [signal.ops.index(op) for op in own.ops],
                "labels": own.labels,
                "rowOf": own.row_of,
                "stages": own.page_stages,
                "places": [sets[stages] for stages in own.stages],
            }
            for signal, own in zip(work.plan.signals, fine.signals, strict=True)
        ],
    }


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
    return {"type": size, "bytes": base64.b64encode(zlib.compress(octets.tobytes(), 6)).decode("ascii")}


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
