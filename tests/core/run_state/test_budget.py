"""Budgets: how long a phase may take, from how long it has taken."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest

from probe.core.run_state.budget import Budget, OwnBudget, Stretches, promise_of, stretches
from probe.core.run_state.progress_file import BUCKETS, PROGRESS_SINCE, RUNNING, UNIT_BITS, ProgressRow, bucket_of

FLOOR, STARTUP = 60.0, 1800.0


def counted(seconds: Iterable[float]) -> Stretches:
    counts = [0] * BUCKETS
    for each in seconds:
        counts[bucket_of(int(each * 1e9) >> UNIT_BITS)] += 1
    return stretches(counts)


def budget(seconds: Iterable[float], phase: str = "step") -> float:
    return Budget(FLOOR, STARTUP).seconds(phase, counted(seconds))


def row(time: float, until: int = 0, phase: str = "step") -> ProgressRow:
    return ProgressRow(5, int(time * 1e9), until, phase, RUNNING)


def test_a_summary_is_that_of_the_durations() -> None:
    """Number, median, ninth decile and longest, each at most a quarter too long."""
    seconds = np.random.default_rng(0).lognormal(0, 1, 999)
    found = counted(seconds)
    expected = [np.quantile(seconds, 0.5), np.quantile(seconds, 0.9), seconds.max()]
    assert found.number == 999
    for one, true in zip(found[1:], expected, strict=True):
        assert true * 0.99 <= one <= true * 1.27
    assert counted([]) == (0, 0.0, 0.0, 0.0)


def test_nothing_is_known_of_a_first_time() -> None:
    """The start, and a phase that has never ended, may take startup_seconds, whatever else was short."""
    assert budget([]) == budget([], "checkpoint") == budget([0.1] * 50, "start") == STARTUP
    assert Budget(3000, STARTUP).seconds("start", counted([])) == 3000


def test_short_steps_have_the_floor() -> None:
    """Steps of a second or less, regular or not, may take a minute, and no longer."""
    assert budget([1.0] * 1000) == budget([0.2, 1.0, 0.01] * 300) == FLOOR


def test_long_phases_have_a_multiple_of_what_they_took() -> None:
    """The budget of a phase grows with its longest stretch: tenfold as long as few are known, then threefold."""
    assert 1000 <= budget([100.0] * 3, "checkpoint") <= 1250
    assert 1500 <= budget([150.0] + [10.0] * 9, "checkpoint") <= 1875, "ten times the longest"
    assert 400 <= budget([10.0] * 80 + [40.0] * 20) <= 500, "as widely as they vary"
    assert 1000 <= budget([100.0] * 500) <= 1250, "ten times the median"
    assert 900 <= budget([10.0] * 499 + [300.0]) <= 1125, "three times the longest"
    assert 10800 <= budget([3600.0], "evaluation") <= 13500, "not ten hours"


def simulate(durations: Callable[[np.random.Generator], np.ndarray], runs: int) -> int:
    """Number of alarms in healthy runs whose steps take ``durations``, with no floor that could hide one."""
    alarms = 0
    for seed in range(runs):
        counts, judge = [0] * BUCKETS, Budget(0.001, STARTUP)
        for each in durations(np.random.default_rng(seed)):
            past = stretches(counts)
            alarms += each > judge.seconds("step", past)
            counts[bucket_of(int(each * 1e9) >> UNIT_BITS)] += 1
    return alarms


@pytest.mark.parametrize(
    "durations",
    [
        lambda random: random.normal(2, 0.2, 300).clip(0.5),
        lambda random: random.exponential(2.0, 300),
        lambda random: random.lognormal(1, 1, 300),
        lambda random: random.choice([0.5, 4.0], 300, p=[0.8, 0.2]),
        lambda random: 2 + 8 * (np.arange(300) % 50 == 49),
        lambda random: np.linspace(1, 60, 300) * random.uniform(0.8, 1.2, 300),
    ],
    ids=["regular", "exponential", "log-normal", "two kinds", "every fiftieth", "ever longer"],
)
def test_irregular_steps_raise_no_alarm(durations: Callable[[np.random.Generator], np.ndarray]) -> None:
    """Very irregular but healthy durations stay within a budget that has no floor at all."""
    assert simulate(durations, 20) == 0


def test_a_standstill_is_beyond_the_budget_of_regular_steps() -> None:
    """Regular steps of two seconds leave a budget that a standstill exceeds within a minute."""
    assert Budget(1.0, STARTUP).seconds("step", counted([2.0] * 100)) < 30


def test_a_pause_that_went_by_is_learnt() -> None:
    """A pause after an alert that proved healthy raises the budget of that phase, not of others."""
    judge = Budget(FLOOR, STARTUP)
    past = counted([1.0] * 100)
    judge.survive("step", 400)
    judge.survive("step", 300)
    assert judge.seconds("step", past) == 600
    assert judge.seconds("data", past) == FLOOR


def test_time_is_counted_from_the_last_sign_of_progress() -> None:
    """The rest of a budget shrinks with time and is negative when it is over."""
    judge, past = Budget(FLOOR, STARTUP), counted([1.0] * 100)
    assert judge.left(row(1000), past, int(1010e9)) == pytest.approx(50)
    assert judge.left(row(1000), past, int(1061e9)) == pytest.approx(-1)


def test_a_promise_replaces_the_budget() -> None:
    """A promise may be longer or shorter than what was learnt; after a sign of progress the longer of both counts."""
    judge, past = Budget(FLOOR, STARTUP), counted([1.0] * 100)
    longer, shorter = int(1500e9), int(1005e9) // 2 * 2
    assert judge.left(row(1000, longer), past, int(1400e9)) == pytest.approx(100)
    assert judge.left(row(1000, shorter), past, int(1006e9)) == pytest.approx(-1)
    assert judge.left(row(1000, longer | PROGRESS_SINCE), past, int(1400e9)) == pytest.approx(100)
    assert judge.left(row(1000, shorter | PROGRESS_SINCE), past, int(1006e9)) == pytest.approx(54)


class Paced:
    """Progress whose clock the test sets."""

    def __init__(self) -> None:
        self.at, self.steps, self.histogram = 0.0, 0, [0] * BUCKETS

    def step(self, after: float) -> None:
        self.histogram[bucket_of(int(after * 1e9) >> UNIT_BITS)] += 1
        self.at += after
        self.steps += 1

    def row(self) -> ProgressRow:
        return ProgressRow(self.steps, int(self.at * 1e9), 0, "step", RUNNING)

    def counts(self, phase: str) -> list[int]:
        return self.histogram


def test_a_rank_that_judges_itself_learns_from_a_standstill_but_little() -> None:
    """A pause of a thousand seconds that was over the budget raises it to one and a half times that, not to three."""
    progress = Paced()
    own = OwnBudget(progress, Budget(FLOOR, STARTUP))
    for _ in range(50):
        progress.step(1.0)
    assert own.look(int(progress.at * 1e9))[1] == pytest.approx(FLOOR)
    assert own.look(int((progress.at + 900) * 1e9))[1] == pytest.approx(FLOOR - 900)
    progress.step(1000.0)
    assert own.look(int(progress.at * 1e9))[1] == pytest.approx(1500)


def test_time_before_a_judge_began_does_not_count() -> None:
    """As for a tracker that is started long after its process."""
    own = OwnBudget(Paced(), Budget(FLOOR, FLOOR), since=int(500e9))
    assert own.look(int(510e9))[1] == pytest.approx(FLOOR - 10)


@pytest.mark.parametrize(("left", "promise"), [(-3.0, 0.0), (0.0, 0.0), (59.2, 60.0)])
def test_a_promise_has_whole_seconds(left: float, promise: float) -> None:
    """And is never negative."""
    assert promise_of(left) == promise
