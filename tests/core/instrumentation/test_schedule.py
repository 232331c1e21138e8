"""Sampled steps."""

from __future__ import annotations

import pytest

from probe.core.instrumentation.schedule import Schedule


def sampled(schedule: Schedule, steps: range = range(12)) -> list[int]:
    """The steps that a run through ``steps`` samples."""
    found = []
    for step in steps:
        if schedule.samples(step):
            found.append(step)
            schedule.ended(step, sampled=True)
    return found


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Schedule(), list(range(12))),
        (Schedule(start_step=9), [9, 10, 11]),
        (Schedule(step_interval=5), [0, 5, 10]),
        (Schedule(start_step=3, step_interval=4), [3, 7, 11]),
        (Schedule(collect_times=2), [0, 1]),
        (Schedule(start_step=2, step_interval=2, collect_times=3), [2, 4, 6]),
        (Schedule(start_step=99), []),
        (Schedule(collect_times=0), []),
    ],
)
def test_every_interval_from_the_start_so_many_times(schedule: Schedule, expected: list[int]) -> None:
    """Steps are counted from start_step in steps of step_interval, collect_times of them."""
    assert sampled(schedule) == expected


def test_a_resumed_run_keeps_to_the_same_steps() -> None:
    """The sampled steps do not depend on where a run was interrupted."""
    assert sampled(Schedule(start_step=3, step_interval=4), range(6, 20)) == [7, 11, 15, 19]


def test_finished_as_soon_as_the_last_was_collected() -> None:
    """Nothing more will come after collect_times steps, or ever if that is 0."""
    schedule = Schedule(collect_times=1)
    assert not schedule.finished
    assert sampled(schedule) == [0]
    assert schedule.finished
    assert Schedule(collect_times=0).finished
