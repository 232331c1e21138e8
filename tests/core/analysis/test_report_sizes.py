"""A report's size: bounded whatever the run's, with every name and step in exactly one row and column."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from probe.core.analysis.pictures.layout import (
    CELLS,
    FEW_RANKS,
    MANY_RANK_CELLS,
    MOST_COLUMNS,
    RANK_CELLS,
    RankPlan,
    ReportPlan,
    plan,
)
from probe.core.analysis.pictures.packing import BIAS, FEW, SPECIALS, embedded
from probe.core.analysis.pictures.survey import SignalSurvey, Survey, SurveyRow
from tests.packed_text import unpacked_text

pytestmark = pytest.mark.slow


def surveyed(signals: int, names: int, ops: int, steps: int, interval: int = 1) -> Survey:
    """Survey of a run of that size."""
    rows = [SurveyRow(0, 0, f"layers.{n // 8}.block{n % 8 // 2}.part{n % 2}") for n in range(names)]
    of = [SignalSurvey(f"s{n}", ("norm", *(f"op{op}" for op in range(1, ops))), rows, 0) for n in range(signals)]
    last = (steps - 1) * interval
    return Survey(of, list(range(0, last + 1, interval)) if steps <= 4096 else [], 0, last)


def cells(chosen: ReportPlan) -> int:
    """Number of cells of the heatmaps."""
    return sum(len(one.labels) * len(one.ops) for one in chosen.signals) * len(chosen.columns.starts)


def rank_cells(plan: RankPlan) -> int:
    """Number of cells of the ranks."""
    return sum(len(own.labels) * len(own.ops) for own in plan.signals) * plan.lines * len(plan.columns.starts)


@pytest.mark.parametrize(
    ("signals", "names", "ops", "steps", "ranks"),
    [
        (1, 10, 5, 20, 2),
        (9, 8000, 5, 5000, 16),
        (9, 1000, 8, 1_000_000, 1024),
        (30, 6000, 8, 100, 64),
        (1, 500, 5, 5000, 16),
        (2, 100, 5, 20, 10_000),
        (9, 8000, 5, 5000, 1000),
        (1, 10, 5, 20, 100_000),
        (9, 600, 8, 1_000_000, 100_000),
    ],
)
def test_cells_do_not_grow_with_the_run(signals: int, names: int, ops: int, steps: int, ranks: int) -> None:
    """However large the run, the page has room for it; and what is small is shown whole."""
    chosen = plan(surveyed(signals, names, ops, steps), ranks)
    assert cells(chosen) <= CELLS * 1.01
    assert chosen.ranks
    assert rank_cells(chosen.ranks) <= (RANK_CELLS if ranks <= FEW_RANKS else MANY_RANK_CELLS) * 1.01
    assert chosen.ranks.lines * chosen.ranks.ranks_a_line >= ranks
    for page, lines in zip(chosen.signals, chosen.ranks.signals, strict=True):
        assert len(lines.row_of) == len(page.labels)
        assert set(lines.row_of) == set(range(len(lines.labels)))
    for own in chosen.signals:
        assert len({member for members in own.members for member in members}) == sum(map(len, own.members)) == names
        assert len(set(own.labels)) == len(own.labels)
    if steps <= 20 and ranks <= FEW_RANKS:
        assert len(chosen.columns.starts) == len(chosen.ranks.columns.starts) == steps
        assert chosen.signals[0].labels == tuple(member.name for (member,) in chosen.signals[0].members)
        assert chosen.ranks.signals[0].ops == chosen.signals[0].ops


@pytest.mark.parametrize(("steps", "interval"), [(1, 1), (400, 10), (401, 1), (401, 10), (5000, 3), (100_000, 1)])
def test_every_step_has_one_column(steps: int, interval: int) -> None:
    """Columns begin where the SQL of a step's column begins, and leave no step out."""
    chosen = plan(surveyed(1, 5, 5, steps, interval), 1)
    starts = chosen.columns.starts.tolist()
    assert len(starts) <= MOST_COLUMNS
    width = chosen.columns.width
    for step in range(0, steps * interval, interval * max(1, steps // 1000)):
        start = eval(chosen.columns.sql(), {"v": SimpleNamespace(step=step)})
        assert start in starts
        assert start <= step < start + max(width, 1)
        assert starts[int(chosen.columns.of(np.array([start]))[0])] == start


def places(far: Any, width: int) -> list[int]:
    """Places of numbers, of the distances within lines."""
    lines = (far >> 1).astype(np.int64).reshape(-1, width) ^ -(far & 1).astype(np.int64).reshape(-1, width)
    lines[:, 0] = lines[:, 0].cumsum()
    return list(lines.cumsum(axis=1).reshape(-1).tolist())


def number_at(place: int, digits: int) -> float:
    """The number at a place among all those of some digits."""
    if abs(place) < len(SPECIALS):
        return SPECIALS[place]
    exponent, mantissa = divmod(abs(place), 9 * 10 ** (digits - 1))
    return math.copysign(float(f"{mantissa + 10 ** (digits - 1)}e{exponent - BIAS}"), place)


def unpacked(text: str) -> dict[str, Any]:
    """The arrays of a page, joining bytes of different weight again."""
    data = unpacked_text(text)
    at = 4 + int.from_bytes(data[:4], "little")
    header, arrays = json.loads(data[4:at]), {}
    assert header["planes"]
    for name, kind, number, *more in header["arrays"]:
        dtype = np.dtype(kind).newbyteorder("<")
        octets = np.frombuffer(data, np.uint8, number * dtype.itemsize, at)
        own = octets.reshape(dtype.itemsize, number).T.copy().view(dtype).reshape(number)
        arrays[name] = np.array([number_at(place, more[0]) for place in places(own, more[1])]) if more else own
        at += octets.size
    assert at == len(data)
    return arrays


@pytest.mark.parametrize("top", [0, 1, 127, 128, 32767, 32768, 2**31 - 1])
def test_whole_numbers_come_back(top: int) -> None:
    """Of every size, of both signs, beside numbers of another size."""
    array = np.array([0, top, -top, top // 2, -(top // 3), 1], "<i4")
    found = unpacked(embedded({"whole": array, "real": array.astype("<f8"), "short": array.astype("<i2")}))
    np.testing.assert_array_equal(found["whole"], array)
    np.testing.assert_array_equal(found["real"], array)
    np.testing.assert_array_equal(found["short"], array.astype("<i2"))


@pytest.mark.parametrize("digits", [FEW, 9])
def test_digits_come_back_as_they_were_written(digits: int) -> None:
    """Over the whole range of float64: mantissa and exponent as text are the number that was in the file."""
    rng = np.random.default_rng(5)
    raw = rng.uniform(-10, 10, 4000) * 10.0 ** rng.integers(-300, 300, 4000)
    special = [0.0, 1e-300, 999999.0, 1.0, 5e-324, np.nan, np.inf, -np.inf]
    values = np.array([float(f"{value:.{digits - 1}e}") for value in raw] + special).reshape(12, -1)
    np.testing.assert_array_equal(unpacked(embedded({"x": values}, {"x": None}))["x"], values.reshape(-1))


@pytest.mark.parametrize("digits", [2, 3, 4])
def test_numbers_are_rounded_to_few_digits(digits: int) -> None:
    """As Python writes them, but for a tie."""
    rng = np.random.default_rng(6)
    values = rng.uniform(-10, 10, 4000) * 10.0 ** rng.integers(-30, 30, 4000)
    written = np.array([float(f"{value:.{digits - 1}e}") for value in values])
    np.testing.assert_array_equal(unpacked(embedded({"x": values}, {"x": digits}))["x"], written)
