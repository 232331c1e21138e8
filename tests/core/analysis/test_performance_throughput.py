"""Stretches of throughput: the first healthy one is the standard, and a drop has its very steps."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from probe.core.analysis.performance.throughput import ThroughputLevels, judged, stable_level


def noisy(pieces: Iterable[tuple[int, float]], noise: float = 0.05, seed: int = 0) -> np.ndarray:
    """Throughput of pieces of so many steps around a level."""
    levels = np.concatenate([np.full(number, level) for number, level in pieces])
    return levels * np.exp(noise * np.random.default_rng(seed).standard_normal(len(levels)))


def judge(speeds: np.ndarray, usual: np.ndarray | None = None, first: int = 0) -> ThroughputLevels:
    steps = np.arange(first, first + len(speeds))
    return judged(steps, speeds, np.ones(len(speeds), dtype=bool) if usual is None else usual)


def test_a_drop_has_its_very_first_and_last_step() -> None:
    """Also with a step number that does not begin at 0; levels and factor are medians by hand."""
    speeds = noisy([(400, 100.0), (130, 50.0), (470, 100.0)])
    found = judge(speeds, first=5000)
    (drop,) = found.drops
    assert (drop.first_step, drop.last_step, drop.lasting) == (5400, 5529, False)
    assert drop.speed == np.median(speeds[400:530])
    assert found.healthy is not None
    begin, end = found.healthy.first_step - 5000, found.healthy.last_step - 5000
    assert (begin, end) == (20, 44)  # after the warm-up, four windows of ten, each half over the one before
    assert found.healthy.speed == np.median(speeds[begin : end + 1])
    assert drop.factor == pytest.approx(found.healthy.speed / drop.speed)
    assert found.now == np.median(speeds[-10:])


@pytest.mark.parametrize("seed", range(8))
def test_edges_are_right_within_a_few_steps_of_noise(seed: int) -> None:
    """With ten percent of noise and a drop to two thirds."""
    found = judge(noisy([(3000, 12.0), (400, 8.0), (2600, 12.0)], 0.1, seed))
    (drop,) = found.drops
    assert abs(drop.first_step - 3000) <= 5
    assert abs(drop.last_step - 3399) <= 5
    assert drop.factor == pytest.approx(1.5, rel=0.05)


def test_a_decline_that_is_slower_than_any_average_is_a_drop() -> None:
    """A moving baseline would learn it; the first healthy stretch does not move."""
    speeds = np.linspace(100.0, 40.0, 4000) * noisy([(4000, 1.0)], 0.02)
    moving = np.convolve(speeds, np.ones(50) / 50, "valid")
    assert (speeds[50:] / moving[:-1]).min() > 0.8  # which never sees a fifth missing
    (drop,) = judge(speeds).drops
    assert drop.lasting
    assert drop.last_step == 3999
    assert 1200 < drop.first_step < 2200
    assert drop.factor > 1.4


def test_two_drops_and_one_that_lasts() -> None:
    """A second drop is measured against the same standard as the first."""
    found = judge(noisy([(300, 10.0), (100, 6.0), (300, 10.0), (200, 4.0)], 0.03))
    assert [(drop.first_step, drop.last_step, drop.lasting) for drop in found.drops] == [
        (300, 399, False),
        (700, 899, True),
    ]
    assert [round(drop.factor, 1) for drop in found.drops] == [1.7, 2.5]
    assert len({drop.expected for drop in found.drops}) == 1


def test_a_slow_start_is_no_standard_and_no_drop() -> None:
    """A run that begins at half of its speed is measured against what it reaches; the start is named apart."""
    found = judge(noisy([(300, 50.0), (500, 100.0), (200, 50.0)], 0.02))
    assert found.healthy is not None
    assert found.healthy.speed == pytest.approx(100, rel=0.02)
    assert found.healthy.first_step >= 300
    assert found.slow_start is not None
    assert (found.slow_start.first_step, found.slow_start.last_step) == (20, 299)
    assert [(drop.first_step, drop.last_step) for drop in found.drops] == [(800, 999)]


def test_one_fast_stretch_is_no_standard() -> None:
    """Forty steps with little to do do not make a drop of the rest."""
    found = judge(noisy([(500, 10.0), (40, 25.0), (460, 10.0)], 0.03))
    assert found.drops == ()
    assert found.slow_start is None
    assert found.best is not None
    assert found.best.speed == pytest.approx(10, rel=0.05)


def test_single_slow_steps_are_no_drop() -> None:
    """Every twentieth step takes ten times as long."""
    speeds = noisy([(1000, 10.0)])
    speeds[::20] /= 10
    assert judge(speeds).drops == ()


def test_steps_with_an_evaluation_are_left_out() -> None:
    """A long evaluation in many steps one after another is no drop of throughput."""
    speeds = noisy([(400, 10.0), (40, 1.0), (400, 10.0)])
    usual = np.ones(len(speeds), dtype=bool)
    assert len(judge(speeds, usual).drops) == 1
    usual[400:440] = False
    assert judge(speeds, usual).drops == ()


def test_numbers_that_are_no_throughput_are_left_out() -> None:
    """NaN, infinities, zeros and negative numbers between good ones change nothing."""
    good = noisy([(400, 10.0), (100, 5.0)])
    mixed = np.insert(good, np.arange(0, 500, 5), np.tile([np.nan, np.inf, 0.0, -1.0], 25))
    steps = np.insert(np.arange(500), np.arange(0, 500, 5), np.arange(0, 500, 5))
    mixed_levels = judged(steps, mixed, np.ones(len(mixed), dtype=bool))
    plain = judge(good)
    assert [drop[:2] for drop in mixed_levels.drops] == [drop[:2] for drop in plain.drops] == [(400, 499)]


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.15, 0.3])
def test_a_healthy_run_has_no_drop(noise: float) -> None:
    """In hundred runs of several lengths, as noisy as it may be."""
    lengths = (60, 150, 700, 4000)
    found = [judge(noisy([(lengths[seed % 4], 7.0)], noise, seed)).drops for seed in range(100 if noise else 4)]
    assert [drops for drops in found if drops] == []


@pytest.mark.parametrize("steps", [0, 1, 5, 20])
def test_too_few_steps_are_not_judged(steps: int) -> None:
    """No standard, no drop and no error."""
    found = judge(noisy([(steps, 3.0)]))
    assert (found.healthy, found.best, found.drops) == (None, None, ())


def test_a_run_that_is_never_stable_has_no_standard() -> None:
    """Levels that change all the time."""
    found = judge(noisy([(10, 1.5**n) for n in range(20)], 0.0))
    assert (found.healthy, found.drops) == (None, ())
    assert found.now == 1.5**19


def test_stable_level() -> None:
    """The median of numbers whose parts agree; None for a slope or too few."""
    values = noisy([(15, 4.0)], 0.02)
    assert stable_level(values) == np.median(values)
    assert stable_level(np.linspace(1.0, 2.0, 15)) is None
    assert stable_level(np.array([1.0, 1.0])) is None
