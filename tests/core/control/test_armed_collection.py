"""Collection around an incident: what begins it, and its limits."""

from __future__ import annotations

import logging

import pytest

from probe.core.checks.check import CheckFinding, Grade
from probe.core.control.armed_collection import BYTES, INCIDENTS, SECONDS, SHARE, SHORTEST_RUN, ArmedCollection

MOST = SHARE * SHORTEST_RUN


class Clock:
    """Clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def found(check: str, step: int, grade: Grade = "critical") -> CheckFinding:
    return CheckFinding(check, grade, (), step, step, "", {})


def incident(armed: ArmedCollection, check: str, step: int, *costs: float) -> None:
    """An incident after ``check`` found something at ``step``, of as many steps as there are costs."""
    armed.receive([found(check, step)])
    armed.begin(armed.take(), step + 1, 0.0)
    account = 0.0
    for cost in costs:
        account += cost
        armed.spend(account, 0)
    armed.end(step + 1 + len(costs))


def test_criticals_and_warnings_about_numbers_wake_the_training() -> None:
    """Notes do not, nor do warnings about the loop, of which rows show nothing."""
    armed, woken = ArmedCollection(), list[int]()
    armed.wake = lambda: woken.append(1)
    armed.receive([found("constant-clip", 3, "note"), found("loss-leap", 3, "note")])
    armed.receive([found("clip-before-unscale", 4, "warning")])
    assert (woken, armed.take()) == ([], [])
    armed.receive([found("loss-leap", 5, "warning")])
    armed.receive([found("parameters-replaced", 6)])
    assert (len(woken), armed.take()) == (2, [("loss-leap", 5), ("parameters-replaced", 6)])


def test_a_second_finding_of_a_kind_begins_nothing() -> None:
    """Neither one that was found first during the incident of another kind."""
    armed = ArmedCollection()
    armed.receive([found("loss-not-finite", 30)])
    armed.begin(armed.take(), 31, 0.0)
    armed.receive([found("gradient-not-finite", 33)])
    assert armed.take() == []
    armed.end(41)
    assert [stretch.kinds for stretch in armed.stretches] == [("loss-not-finite", "gradient-not-finite")]
    armed.receive([found("loss-not-finite", 50), found("gradient-not-finite", 50)])
    assert armed.take() == []


def test_there_are_three_incidents_an_hour() -> None:
    """The fourth begins once the first is an hour past."""
    clock = Clock()
    armed = ArmedCollection(clock)
    for number in range(INCIDENTS):
        assert armed.refusal() == ""
        incident(armed, f"kind-{number}", 100 * number)
        clock.seconds += 60.0
    assert armed.refusal() == "3 incidents within an hour"
    clock.seconds += SECONDS
    assert armed.refusal() == ""


def test_all_incidents_take_a_fiftieth_of_the_run_at_most(caplog: pytest.LogCaptureFixture) -> None:
    """By the account of the monitor's time; a run shorter than a minute counts as one of a minute."""
    clock = Clock()
    armed = ArmedCollection(clock)
    with caplog.at_level(logging.INFO, "probe"):
        incident(armed, "one", 10, 0.4 * MOST, 0.4 * MOST)
        assert (armed.exhausted, armed.refusal()) == (False, "")
        incident(armed, "other", 20, 0.1 * MOST, 0.2 * MOST)
    assert armed.refusal() == "2% of the run's time"
    assert [record.getMessage().partition("; ended: ")[2] for record in caplog.records] == [
        "the configuration has changed",
        "2% of the run's time",
    ]
    clock.seconds += 2 * SHORTEST_RUN
    assert armed.refusal() == ""


def test_an_incident_that_ends_at_once_is_none(caplog: pytest.LogCaptureFixture) -> None:
    """The configuration has changed before anything was collected; one that the run's end cuts short is logged."""
    armed = ArmedCollection()
    with caplog.at_level(logging.INFO, "probe"):
        incident(armed, "one", 10)
        armed.receive([found("other", 20)])
        armed.begin(armed.take(), 21, 0.0)
        armed.end(23, "the run has ended")
    assert [stretch.kinds for stretch in armed.stretches] == [("other",)]
    assert caplog.messages == ["collected deep at steps 21 to 22, after other at step 20; ended: the run has ended"]


def test_the_rows_of_an_incident_are_bounded() -> None:
    """As if none of them were written meanwhile."""
    armed = ArmedCollection()
    armed.receive([found("loss-leap", 5)])
    armed.begin(armed.take(), 6, 0.0)
    armed.spend(0.0, BYTES - 1)
    assert not armed.exhausted
    armed.spend(0.0, 1)
    assert armed.exhausted


def test_a_refusal_is_logged_once_a_reason(caplog: pytest.LogCaptureFixture) -> None:
    """With the checks that found something."""
    armed = ArmedCollection()
    for _ in range(2):
        armed.refuse(["loss-leap"], "nobody wants it")
    assert [record.getMessage() for record in caplog.records] == [
        "sentinel: after loss-leap nothing more is collected: nobody wants it"
    ]


def test_training_waits_for_few_judgements() -> None:
    """For none once a loss that is not finite has been found, and for ten that were none."""
    armed = ArmedCollection()
    waits = 0
    for _ in range(20):
        armed.suspect()
        waits += armed.suspicious()
    assert waits == 10
    other = ArmedCollection()
    incident(other, "loss-not-finite", 3)
    other.suspect()
    assert not other.suspicious()
