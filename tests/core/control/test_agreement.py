"""Changes that all ranks make at one announced step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from probe.core.control.agreement import ScheduledChange
from probe.core.distributed.announcements import FolderNotices
from probe.core.faults import Faults


def changes(folder: Path, faults: Faults, rank: int = 0) -> ScheduledChange[str]:
    return ScheduledChange("control", FolderNotices(folder, rank), lambda notice: str(notice["name"]), faults)


def test_every_rank_makes_the_change_at_its_step(tmp_path: Path) -> None:
    """Once, also on a rank that announced nothing; until then there is none."""
    faults = Faults()
    ranks = [changes(tmp_path, faults, rank) for rank in range(2)]
    ranks[0].announce(3, name="faster")
    assert [rank.next_step() for rank in ranks] == [3, 3]
    assert [[rank.poll(step) for step in (2, 3, 4)] for rank in ranks] == [[None, "faster", None]] * 2
    assert faults.counts == {}


def test_the_first_announcement_counts(tmp_path: Path) -> None:
    """A rank that announces after another one has takes in the other's change."""
    first, second = (changes(tmp_path, Faults(), rank) for rank in range(2))
    first.announce(3, name="first")
    second.announce(5, name="second")
    assert [rank.poll(5) for rank in (first, second)] == ["first", "first"]


def test_a_later_announcement_supersedes(tmp_path: Path) -> None:
    """A change is dropped if a newer one was announced for its step or an earlier one; one before that step stays."""
    writer, reader = (changes(tmp_path, Faults(), rank) for rank in range(2))
    for step, name in ((3, "kept"), (8, "dropped"), (6, "newest")):
        writer.announce(step, name=name)
    while reader.read():
        pass
    assert [reader.poll(step) for step in range(3, 9)] == ["kept", None, None, "newest", None, None]


def test_a_change_whose_step_is_over_is_made_and_counted(tmp_path: Path) -> None:
    """A rank that sees it too late makes it at once; of several only the last."""
    faults = Faults()
    writer, reader = changes(tmp_path, Faults(), 0), changes(tmp_path, faults, 1)
    for step in (3, 4):
        writer.announce(step, name=f"of step {step}")
    while reader.read():
        pass
    assert reader.poll(4) == "of step 4"
    assert faults.counts == {"control: TimeoutError": 1}


def test_a_change_can_be_passed_over(tmp_path: Path) -> None:
    """A dropped change is returned, and never due."""
    ours = changes(tmp_path, Faults())
    ours.announce(3, name="outdated")
    assert (ours.drop(), ours.poll(9), ours.next_step()) == ("outdated", None, None)


@pytest.mark.parametrize("notice", [{"name": "no step"}, {"step": "soon", "name": "late"}, {"step": None, "name": ""}])
def test_an_announcement_that_makes_no_sense_is_counted(notice: Mapping[str, Any], tmp_path: Path) -> None:
    """It is passed over; the next one is taken in."""
    faults, notices = Faults(), FolderNotices(tmp_path, 1)
    ours = changes(tmp_path, faults)
    notices.give(notice)
    with ours.counted():
        ours.read()
    assert sum(faults.counts.values()) == 1
    ours.announce(4, name="next")
    assert ours.poll(4) == "next"
