"""The thread between a run and its tracker."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from probe.core.faults import Faults
from probe.core.trackers import Cell, Notice, TrackedRow, TrackedTable
from probe.core.trackers.tracker_thread import MOST_WAITING, Item, TrackerBudget, TrackerThread
from tests.core.trackers.slow_tracker import STEPS
from tests.core.trackers.training import ROOT

SECONDS = 120.0


class Kept:
    """A tracker that keeps what it gets, if it answers at all."""

    def __init__(self) -> None:
        self.got: list[object] = []
        self.asked, self.answers = threading.Event(), threading.Event()
        self.answers.set()

    def begin(self) -> None:
        self.got.append("begin")

    def log(self, rows: Sequence[TrackedRow]) -> None:
        self.asked.set()
        self.answers.wait()
        self.got += [(row.step, dict(row.values)) for row in rows]

    def alert(self, notice: Notice) -> None:
        raise RuntimeError("no alerts here")

    def table(self, table: TrackedTable) -> None:
        self.got.append(table.name)

    def summary(self, texts: Mapping[str, Cell]) -> None:
        self.got.append(dict(texts))

    def artifact(self, path: Path) -> None:
        self.got.append(path)

    def end(self) -> None:
        self.got.append("end")


def row(step: int, **values: float) -> TrackedRow:
    return TrackedRow(step, 0.0, values)


def started(tracker: Kept, faults: Faults, every: float, *last: Item) -> TrackerThread:
    return TrackerThread("kept", tracker, every, faults, lambda: last)


def test_rows_of_a_step_are_put_together() -> None:
    """In the order of steps, with the last table and summary after them; a call that fails stops no other. The first
    row waits for no other."""
    tracker, faults = Kept(), Faults()
    tracker.answers.clear()
    thread = started(tracker, faults, SECONDS, {"x": "end"})
    thread.put(row(-1, a=9.0))
    assert tracker.asked.wait(SECONDS)  # by the first row, at once
    table = TrackedTable("t", (), ())
    items = [row(1, a=1.0), row(0, a=0.0), Notice("n", "", False, 1), row(1, b=2.0), table, table, {"x": 1}, {"x": 2}]
    for item in items:
        thread.put(item)
    tracker.answers.set()
    thread.close(SECONDS)
    rows = [(-1, {"a": 9.0}), (0, {"a": 0.0}), (1, {"a": 1.0, "b": 2.0})]
    assert tracker.got == ["begin", *rows, "t", {"x": 2}, {"x": "end"}, "end"]
    assert faults.counts == {"tracker kept: RuntimeError": 1, "tracker kept: rows not taken": 1}


def test_a_tracker_that_never_answers_costs_its_rows_alone() -> None:
    """No call waits; what it has not taken is counted once, and the end takes no longer than it may."""
    tracker, faults = Kept(), Faults()
    tracker.answers.clear()
    thread = started(tracker, faults, 0.001)
    thread.put(row(0, a=0.0))
    assert tracker.asked.wait(SECONDS)
    for step in range(1, MOST_WAITING + 10):
        thread.put(row(step, a=0.0))
    thread.close(0.05)
    counts = faults.counts
    assert counts == {"tracker kept: TimeoutError": 1, "tracker kept: rows not taken": MOST_WAITING + 10}
    tracker.answers.set()


def test_a_run_without_rows_begins_none() -> None:
    """The tracker is not made."""
    tracker = Kept()
    started(tracker, Faults(), 0.001).close(SECONDS)
    assert tracker.got == []


def test_the_exit_waits_for_a_beginning_that_is_under_way() -> None:
    """And for nothing else: neither before the first row, nor after it."""
    allowed, entered = threading.Event(), threading.Event()

    class Slow(Kept):
        def begin(self) -> None:
            entered.set()
            allowed.wait()
            super().begin()

    tracker = Slow()
    thread = started(tracker, Faults(), SECONDS)
    thread.settle()
    thread.put(row(0, a=0.0))
    assert entered.wait(SECONDS)
    after: list[object] = []
    exiting = threading.Thread(target=lambda: (thread.settle(), after.extend(tracker.got[:1])))
    exiting.start()
    allowed.set()
    exiting.join(SECONDS)
    assert after == ["begin"]
    thread.close(SECONDS)


def test_a_run_that_begins_after_the_end_is_ended_without_rows() -> None:
    """The end reports the rows that were not taken; the run that is then in the tracker does not stay open."""
    allowed, entered, ended = threading.Event(), threading.Event(), threading.Event()

    class Slow(Kept):
        def begin(self) -> None:
            entered.set()
            allowed.wait()
            super().begin()

        def end(self) -> None:
            super().end()
            ended.set()

    tracker, faults = Slow(), Faults()
    thread = started(tracker, faults, SECONDS, {"x": "end"})
    thread.put(row(0, a=0.0))
    assert entered.wait(SECONDS)
    thread.put(row(1, a=0.0))
    assert thread.close(0.05) == 2
    allowed.set()
    assert ended.wait(SECONDS)
    assert tracker.got == ["begin", "end"]
    assert faults.counts["tracker kept: rows not taken"] >= 2


@pytest.mark.parametrize(("begin", "grace"), [(1.0, 60.0), (30.0, 0.2)], ids=["in time", "too late"])
def test_a_short_run_waits_for_a_tracker_as_long_as_the_grace(begin: float, grace: float, tmp_path: Path) -> None:
    """Its tracker then has every step, and the run is ended; else the command that sends the files is printed."""
    command = [sys.executable, "-m", "tests.core.trackers.slow_tracker", str(begin), str(grace)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MONITOR_OUTPUT_DIR": str(tmp_path / "out")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    got = (tmp_path / "got").read_text().split()
    sentence = "probe: warning: wandb has not taken "
    printed = f"probe:   probe track {tmp_path}/out --to wandb --project 'a b'\n"
    if begin < grace:
        assert (got[0], got[-1], {*map(int, got[1:-1])}) == ("begin", "end", {*range(STEPS)})
        assert sentence not in done.stderr
    else:
        assert got == []
        assert f" rows; this sends all that are in files:\n{printed}" in done.stderr.partition(sentence)[2]


def test_a_budget_of_processor_time_is_kept() -> None:
    """A quarter of a second is free; then a part of the time that has passed. The answer for a step stays."""
    now = [100.0]
    budget = TrackerBudget(0.001, lambda: now[0])
    budget.spend(0.25)
    assert budget.admits(1)
    budget.spend(0.01)
    assert not budget.admits(2)
    assert budget.admits(1)
    now[0] += 11.0
    assert budget.admits(3)
    budget.spend(0.01)
    assert not budget.admits(4)
