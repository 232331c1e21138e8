"""A report's size: bounded whatever the run's, with every name and step in exactly one row and column."""

from __future__ import annotations

import base64
import zlib
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
from probe.core.analysis.pictures.payload import FEW, MANY, NAN, SPECIAL, packed_array, packed_numbers
from probe.core.analysis.pictures.survey import SignalSurvey, Survey, SurveyRow

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


def unpacked(packed: Any, shape: tuple[int, ...]) -> Any:
    """Unpack an array, joining bytes of different weight again."""
    if not packed["type"]:
        return np.zeros(shape, dtype=np.int64)
    octets = np.frombuffer(zlib.decompress(base64.b64decode(packed["bytes"])), dtype=np.uint8)
    return octets.reshape(packed["type"], -1).T.copy().view(f"<i{packed['type']}").reshape(shape).astype(np.int64)


@pytest.mark.parametrize("top", [0, 1, 127, 128, 32767, 32768, 2**31 - 1])
def test_whole_numbers_come_back(top: int) -> None:
    """Of every size, of both signs."""
    array = np.array([[0, top, -top], [top // 2, -(top // 3), 1]])
    np.testing.assert_array_equal(unpacked(packed_array(array), array.shape), array)


@pytest.mark.parametrize("digits", [FEW, MANY])
def test_digits_come_back_as_they_were_written(digits: int) -> None:
    """Over the whole range of float64: mantissa and exponent as text are the number that was in the file."""
    rng = np.random.default_rng(5)
    raw = rng.uniform(-10, 10, 4000) * 10.0 ** rng.integers(-300, 300, 4000)
    values = np.array([float(f"{value:.{digits - 1}e}") for value in raw] + [0.0, 1e-300, 999999.0, 1.0, 5e-324])
    packed = packed_numbers(values, np.zeros(len(values), dtype=bool))
    assert packed["digits"] == digits
    mantissa, exponent = (unpacked(packed[part], values.shape) for part in ("mantissa", "exponent"))
    back = [float(f"{m}e{e}") for m, e in zip(mantissa, exponent, strict=True)]
    np.testing.assert_array_equal(back, values)


def test_what_is_no_number_comes_back_as_what_it_is() -> None:
    """Missing, NaN and both infinities are distinguished, and none of them from zero by its mantissa alone."""
    values = np.array([np.nan, np.nan, np.inf, -np.inf, 0.0])
    packed = packed_numbers(values, np.array([True, False, False, False, False]))
    assert unpacked(packed["mantissa"], (5,)).tolist() == [0, NAN, 2, 3, 0]
    assert unpacked(packed["exponent"], (5,)).tolist() == [SPECIAL] * 4 + [0]
