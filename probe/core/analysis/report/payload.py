"""Data for the scripts of a report: every cell, packed, and the names of rows, columns and files.

A number is packed as a whole ``mantissa`` times ten to the power of an ``exponent``, as decimal digits were written
into the files: ``cells.js`` reads six digits back as the same six digits. Bytes of equal weight stand together, which
compresses better.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from probe.core.analysis.report.findings import Mark
from probe.core.analysis.report.heatmaps import Cells, heatmaps, ranks
from probe.core.analysis.report.layout import Columns, ReportPlan, SignalPlan
from probe.core.analysis.report.page import packed_text
from probe.core.analysis.report.survey import Survey, principal
from probe.core.naming import signal_of
from probe.core.storage.directories import RecordedRun
from probe.core.storage.duckdb_reader import Rows
from probe.core.storage.layout import MICRO_STEP, line_beginning, names_of, table_name
from probe.core.storage.metrics_schema import row_query

MOST_FILES = 50_000
"""Most names of files that the page contains; if there are more, it contains none."""
RANK_DIGITS = 4
LEAST_DIGITS = 3
BAD_OF_A_SIGNAL = 100
"""Most rows of a signal whose first numbers that are not finite are listed."""


def payload(
    rows: Rows, run: RecordedRun, known: Survey, plan: ReportPlan, observe: Callable[[str], object]
) -> tuple[dict[str, object], list[Mark]]:
    """Data for the scripts of the page, and the first number of each row that is not finite."""
    cells: dict[str, object] = {}
    bad: list[Mark] = []
    position = {rank: n for n, rank in enumerate(run.ranks)}
    lines = [position[directory.rank] // plan.ranks_a_line for directory in run.directories]
    for n, signal in enumerate(plan.signals):
        observe(f"{signal.signal} ({n + 1} of {len(plan.signals)})")
        maps = heatmaps(rows, plan, signal)
        bad += _first_bad(maps, signal, run, rows)
        cells.update((f"map/{n}/{m}", _packed(of_op, plan.columns)) for m, of_op in enumerate(maps.values()))
        if len(run.ranks) > 1:
            for op, (values, missing) in ranks(rows, plan, signal, lines).items():
                cells[f"ranks/{n}/{signal.ops.index(op)}"] = packed_numbers(values, missing, RANK_DIGITS)
    return {"about": packed_text(json.dumps(_about(rows, run, known, plan))), "cells": cells}, bad


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


def _first_bad(maps: Mapping[str, Cells], signal: SignalPlan, run: RecordedRun, rows: Rows) -> Iterator[Mark]:
    """First number of each row that is not finite, of the principal op, else of another."""
    micro_stepped = _micro_stepped(rows, signal.signal)
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
            micro = micro_step if micro_stepped else None
            yield Mark("", signal.signal, about.name, op, value, step, rank, micro, "", "", about.vpp_stage, row)


def _micro_stepped(rows: Rows, signal: str) -> bool:
    if any(MICRO_STEP in file.columns for _, file in rows.files[signal]):
        return True
    parquet = [file for _, file in rows.files[signal] if not file.columns]
    return bool(parquet) and MICRO_STEP in rows.columns(rows.source(parquet))


def _about(rows: Rows, run: RecordedRun, known: Survey, plan: ReportPlan) -> dict[str, object]:
    lists: dict[tuple[tuple[str, int, bool], ...], int] = {}
    signals = [
        {
            "signal": signal.signal,
            "meaning": signal_of(signal.signal).meaning,
            "phase": signal_of(signal.signal).phase,
            "ops": signal.ops,
            "rankOps": [signal.ops.index(op) for op in signal.rank_ops],
            "labels": signal.labels,
            "members": [[[member.vpp_stage, member.name] for member in members] for members in signal.members],
            "microStepped": _micro_stepped(rows, signal.signal),
            "line": line_beginning("{stage}", "{name}", "{step}", "{micro}" * _micro_stepped(rows, signal.signal)),
            "query": row_query(signal.signal, "{name}", "{step}"),
            "names": names_of(signal.signal),
            "files": [lists.setdefault(names, len(lists)) for names in _files(rows, signal.signal)],
        }
        for signal in plan.signals
    ]
    few = sum(map(len, lists)) <= MOST_FILES
    groups = [run.ranks[at : at + plan.ranks_a_line] for at in range(0, len(run.ranks), plan.ranks_a_line)]
    return {
        "columns": _columns(plan.columns),
        "rankColumns": _columns(plan.rank_columns),
        "last": known.last,
        "lines": [f"rank {own[0]}" if len(own) == 1 else f"ranks {own[0]}-{own[-1]}" for own in groups],
        "directories": [[directory.path.name, directory.rank] for directory in run.directories],
        "signals": signals,
        "files": list(lists) if few else [],
    }


def _columns(columns: Columns) -> dict[str, object]:
    return {"starts": columns.starts.tolist(), "width": columns.width}


def _files(rows: Rows, signal: str) -> list[tuple[tuple[str, int, bool], ...]]:
    """Files of a signal by directory, in order of steps: name, first step, whether it is a database."""
    files: list[dict[str, tuple[str, int, bool]]] = [{} for _ in rows.directories]
    for directory, file in rows.files[signal]:
        name = rows.original(file).name
        table = table_name(name)
        files[directory][name] = (name, table.first if table else -1, table is None)  # a database has all steps
    return [tuple(own.values()) for own in files]


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
