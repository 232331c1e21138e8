"""The interval between sampled steps within a budget, on clocks of the test's own."""

from __future__ import annotations

import itertools
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from probe.core.control.agreement import AgreedPace
from probe.core.distributed.announcements import FolderNotices
from probe.core.faults import Faults
from probe.core.instrumentation.schedule import Pace, Schedule


def run(schedule: Schedule, steps: int, step: float, sampling: float) -> list[int]:
    """The sampled steps of a training whose steps take ``step`` seconds; where they are sampled, ``sampling`` more."""
    pace, found = schedule.pace, []
    assert pace is not None
    for n in range(steps):
        sampled = schedule.samples(n)
        schedule.ended(n, sampled)
        pace.step(step + sampling * sampled, sampling * sampled, sampled)
        if sampled:
            pace.sampled(sampling)
            found.append(n)
    return found


@pytest.mark.parametrize(("budget", "step", "sampling"), [(0.01, 1.0, 0.2), (0.05, 0.3, 0.1), (0.5, 1.0, 3.0)])
def test_what_sampling_costs_stays_within_the_budget(budget: float, step: float, sampling: float) -> None:
    """As many steps are sampled as the budget allows, after the first ones, which measure the cost."""
    schedule = Schedule(pace=Pace(budget, 1))
    steps = 2000
    found = run(schedule, steps, step, sampling)
    assert len(found) * sampling <= budget * steps * step + 3 * sampling
    assert len(found) >= steps // math.ceil(sampling / (budget * step))
    assert schedule.pace is not None
    assert schedule.pace.skipped == steps - len(found)
    assert 0 < schedule.pace.overhead <= budget


def test_what_costs_less_than_the_budget_is_left_as_configured() -> None:
    schedule = Schedule(start_step=4, step_interval=3, pace=Pace(0.5, 3))
    assert run(schedule, 20, 1.0, 0.01) == [4, 7, 10, 13, 16, 19]
    assert schedule.pace is not None
    assert schedule.pace.skipped == 0


def test_intervals_are_multiples_of_the_configured_one() -> None:
    """Steps that are left out are those that would have been sampled."""
    schedule = Schedule(step_interval=5, pace=Pace(0.1, 5))
    found = run(schedule, 400, 1.0, 1.2)
    assert {step % 5 for step in found} == {0}
    assert schedule.pace is not None
    assert schedule.pace.interval == 15
    assert len(found) + schedule.pace.skipped == 80


def test_one_slow_step_does_not_move_it() -> None:
    """A checkpoint, or another program's burst."""
    pace = Pace(0.1, 1)
    for n in range(12):
        pace.step(100.0 if n == 5 else 1.0, 0.0)
        pace.sampled(5.0 if n == 6 else 0.25)
    assert pace.interval == 3


def test_what_the_monitor_does_not_know_of_its_cost_counts_too() -> None:
    """A device that reduces while the host goes on: sampled steps take half a second more, of which a hundredth is
    known."""
    schedule = Schedule(step_interval=2, pace=Pace(0.05, 2))
    found = []
    assert schedule.pace is not None
    for n in range(400):
        sampled = schedule.samples(n)
        schedule.ended(n, sampled)
        schedule.pace.step(1.5 if sampled else 1.0, 0.01 * sampled, sampled)
        if sampled:
            schedule.pace.sampled(0.01)
            found.append(n)
    assert {later - earlier for earlier, later in itertools.pairwise(found[10:])} == {10}
    assert 0.04 < schedule.pace.overhead <= 0.05


def test_what_differs_from_step_to_step_is_not_taken_for_cost() -> None:
    """Data of another size, or another program's bursts: no step is left out for that."""
    schedule = Schedule(step_interval=2, pace=Pace(0.01, 2))
    rng = np.random.default_rng(0)
    assert schedule.pace is not None
    for n in range(2000):
        sampled = schedule.samples(n)
        schedule.ended(n, sampled)
        schedule.pace.step(float(rng.normal(1.0, 0.002)) + 0.012 * sampled, 0.012 * sampled, sampled)
        if sampled:
            schedule.pace.sampled(0.012)
    assert schedule.pace.interval == 2


def test_work_beside_training_counts_as_well() -> None:
    pace = Pace(0.1, 1)
    for _ in range(8):
        pace.step(1.0, 0.0)
        pace.sampled(0.15, 0.1)
    assert pace.interval == 3


def test_cheaper_again_it_comes_back() -> None:
    pace = Pace(0.1, 1)
    for cost, interval in ((1.0, 10), (0.05, 1)):
        for _ in range(8):
            pace.step(1.0, 0.0)
            pace.sampled(cost)
        assert pace.interval == interval


def test_nothing_is_known_before_anything_was_sampled() -> None:
    assert math.isnan(Pace(0.01, 1).overhead)


def two_ranks(folder: Path, steps: int, costs: dict[int, float], late: int = 0) -> tuple[list[int], list[int], Faults]:
    """The sampled steps of two ranks that have to agree; ``costs`` by the step from which the first rank measures them.

    The second rank sees announcements ``late`` steps too late.
    """
    faults = Faults()
    folder.mkdir(exist_ok=True)
    hidden = folder / "hidden"
    hidden.mkdir(exist_ok=True)
    places = (folder / "seen", hidden) if late else (folder / "seen", folder / "seen")
    paces = [AgreedPace(0.1, 1, FolderNotices(place, r), r == 0, lambda: 2, faults) for r, place in enumerate(places)]
    schedules, found = [Schedule(pace=pace) for pace in paces], ([], [])
    cost = 0.0
    for step in range(steps):
        cost = costs.get(step, cost)
        for rank, (pace, schedule) in enumerate(zip(paces, schedules, strict=True)):
            pace.between(step)
            sampled = schedule.samples(step)
            schedule.ended(step, sampled)
            pace.step(1.0, 0.0)
            if sampled:
                pace.sampled(cost if rank == 0 else 100.0)
                found[rank].append(step)
        for path in (folder / "seen").glob("*.json") if late else ():
            if step >= json.loads(path.read_text())["step"] + late:
                shutil.copy(path, hidden)
    return *found, faults


def test_ranks_that_have_to_agree_sample_the_same_steps(tmp_path: Path) -> None:
    """The first rank's measurement counts for all, from a step on that all have seen in time."""
    one, other, faults = two_ranks(tmp_path, 80, {0: 0.5, 40: 0.1})
    assert one == other
    assert one[:5] == [0, 1, 2, 3, 4]
    apart = {later - earlier for earlier, later in itertools.pairwise(one[6:12])}
    assert apart == {5}
    assert one[-1] - one[-2] == 1
    assert faults.counts == {}


def test_a_rank_that_hears_of_it_too_late_says_so(tmp_path: Path) -> None:
    one, other, faults = two_ranks(tmp_path, 30, {0: 0.5}, late=3)
    assert one != other
    assert faults.counts == {"pace: TimeoutError": 1}


def test_what_an_earlier_run_has_said_does_not_count(tmp_path: Path) -> None:
    """In the same output directory."""
    two_ranks(tmp_path, 30, {0: 0.5})
    one, _, _ = two_ranks(tmp_path, 30, {0: 0.01})
    assert one == list(range(30))
