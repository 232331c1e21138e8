"""Orders to look deeper: which step they are for, and when there is none."""

from __future__ import annotations

from pathlib import Path

from probe.core.control.agreement import FEWEST, LeadTime
from probe.core.control.on_anomaly import Arming
from probe.core.distributed.announcements import FolderNotices
from probe.core.faults import Faults
from tests.core.output.sink_data import finding


def arming(folder: Path, faults: Faults, rank: int = 0) -> Arming:
    """For three steps, four steps ahead, then two of rest."""
    return Arming(FolderNotices(folder, rank), rank, 3, 2, lambda: 4, faults)


def test_an_order_whose_steps_passed_at_rest_is_none(tmp_path: Path) -> None:
    """Monitoring was switched off in between: what was suspect then is not looked at now, and nothing is late."""
    faults = Faults()
    one = arming(tmp_path, faults)
    assert one.poll(10, [finding(9)]) is None
    assert one.poll(500, []) is None
    assert one.poll(600, [finding(599)]) is None
    order = one.poll(604, [])
    assert order is not None
    assert order.step == 604
    assert faults.counts == {}


def test_who_hears_of_it_late_looks_as_long_as_there_is(tmp_path: Path) -> None:
    """It logs that it does."""
    first, second = Faults(), Faults()
    one, other = arming(tmp_path, first), arming(tmp_path, second, rank=1)
    assert one.poll(10, [finding(9)]) is None
    assert one.poll(14, []) is not None
    late = other.poll(16, [])
    assert late is not None
    assert (late.step, second.counts) == (14, {"arming: TimeoutError": 1})


def test_the_rest_after_an_order_ends_with_its_last_step(tmp_path: Path) -> None:
    """Of two quiet steps the second orders nothing; the step after them does."""
    one = arming(tmp_path, Faults())
    one.poll(0, [finding(0)])
    assert one.poll(4, []) is not None  # for steps 4 to 6, quiet in 7 and 8
    for step in (8, 9):
        assert one.poll(step, [finding(step - 1)]) is None
    assert one.poll(12, []) is None
    order = one.poll(13, [])
    assert order is not None
    assert order.step == 13


def test_announced_steps_last_as_long_as_a_file_takes_to_be_seen() -> None:
    """A first step of five minutes, or one that saves, does not make the others seem long."""
    now = 0.0
    lead_time = LeadTime(5.0, lambda: now)
    assert lead_time.steps() == FEWEST
    for seconds in (300.0, *[0.1] * 30, 60.0, *[0.1] * 5):
        now += seconds
        lead_time.step_ended()
    assert lead_time.steps() * 0.1 >= 5.0
    assert lead_time.steps() <= 51
