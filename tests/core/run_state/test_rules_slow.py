"""RunSlow: throughput against the best stretch of the run."""

from __future__ import annotations

import numpy as np
import pytest

from probe.core.naming import STEP_SECONDS
from tests.core.run_state.run_steps import found, noise, places, rule_of, steps_of

N = 600
USUAL = 1 + 0.1 * np.abs(noise(N))
"""Seconds of healthy steps."""


def judged(seconds, **columns):
    steps = steps_of(step_seconds=np.asarray(seconds).tolist(), **columns)
    return places(found(rule_of("RunSlow"), steps))


def slower(factor, begin=300, end=N):
    """Seconds that are ``factor`` times as long from ``begin`` to ``end``."""
    return USUAL * np.where((np.arange(N) >= begin) & (np.arange(N) < end), factor, 1)


def test_a_run_of_its_usual_pace_is_silent():
    """Noise, single steps ten times as long, and a faster second half are healthy."""
    assert judged(USUAL) == []
    assert judged(USUAL * np.where(np.arange(N) % 20 == 0, 10, 1)) == []
    assert judged(slower(0.5)) == []


def test_a_run_that_becomes_slower_is_found_and_its_end_too():
    """Twice the time from step 300 on is found with the half of a stretch, and over with the half of one."""
    [start, end] = judged(slower(2, end=450))
    assert (start[0], start[2], end[2]) == (STEP_SECONDS, False, True)
    assert 320 <= start[1] <= 330
    assert 470 <= end[1] <= 480


def test_a_slow_decline_is_found():
    """Each stretch is hardly slower than the one before, yet the last is half as fast as the first."""
    [(_, step, resolved)] = judged(USUAL * (1 + np.arange(N) / N))
    assert not resolved
    assert 300 < step < 550


def test_less_than_the_factor_is_no_finding():
    """A third slower is within the limit of 1.5."""
    assert judged(slower(1.33)) == []


def test_throughput_counts_rather_than_seconds():
    """Steps that are longer because they do more are healthy; as long ones that do less are not."""
    assert judged(slower(2), throughput=(32 / USUAL).tolist()) == []
    [finding] = judged(USUAL, throughput=(32 / slower(2)).tolist())
    assert finding[0] == "throughput"


def test_steps_with_rare_phases_are_left_out():
    """Saving and evaluation make steps long, many in a row too."""
    seconds = slower(5, 300, 340)
    evaluation = [4.0 if 300 <= n < 340 else None for n in range(N)]
    assert judged(seconds) != []
    assert judged(seconds, phase__evaluation=evaluation) == []


def test_a_phase_of_every_step_is_part_of_it():
    """A loader that becomes slow makes the run slow."""
    seconds = slower(2)
    assert len(judged(seconds, phase__data=(seconds / 2).tolist())) == 1


def test_the_first_steps_are_no_standard():
    """Steps that are fast at the very beginning do not make the others slow."""
    assert judged(np.where(np.arange(N) < 20, 0.01, 1) * USUAL) == []


def test_one_fast_stretch_is_no_standard():
    """Seventy steps with little to do do not make all that follow slow."""
    seconds = np.where((np.arange(N) >= 215) & (np.arange(N) < 285), 0.62, 1) * USUAL
    assert judged(seconds) == []


def test_throughput_that_is_none_is_left_out():
    """A step whose throughput is NaN, infinite or 0 says nothing."""
    throughput = 32 / slower(2)
    throughput[::2] = np.resize([np.nan, np.inf, 0.0], N // 2)
    [finding] = judged(USUAL, throughput=throughput.tolist())
    assert finding[0] == "throughput"
    assert 340 <= finding[1] <= 360
    seconds = np.where(np.arange(N) % 2 == 0, np.nan, USUAL)
    [(_, step, _)] = judged(seconds, throughput=(32 / slower(2)).tolist())
    assert 340 <= step <= 360


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 0.0, -1.0])
def test_times_that_are_none_are_left_out(bad):
    """NaN, as of the first step, infinity, zero and less are neither judged nor held."""
    seconds = np.where(np.arange(N) % 2 == 0, bad, USUAL)
    assert judged(seconds) == []
    [(_, step, _)] = judged(np.where(np.arange(N) % 2 == 0, bad, slower(2)))
    assert 340 <= step <= 360


def test_short_steps_are_judged_by_time():
    """A stretch lasts 30 s at least: a hundred slow steps of a millisecond are none, a minute of them is one."""
    assert judged(0.001 * slower(3)) == []
    rows = 0.05 * np.where(np.arange(4000) < 2400, 1, 3)
    [(_, step, _)] = judged(rows)
    assert 2400 < step <= 2400 + 20 / 0.15


def test_the_message_names_both_values():
    """A finding has the typical value and the best one."""
    [finding] = found(rule_of("RunSlow"), steps_of(step_seconds=np.where(np.arange(N) < 300, 1, 2).tolist()))
    assert (finding.value, finding.expected, finding.severity) == (2, 1, "warning")
    assert "step_seconds is 2 in the median of the latest stretch, at step " in finding.message
