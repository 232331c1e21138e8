"""The sink of trackers, without any tracker."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from probe.core.config.load import load
from probe.core.faults import Faults
from probe.core.output.metrics.hub import MetricsHub, RankName
from probe.core.output.sinks.context import SinkContext
from probe.core.output.sinks.tracker import TrackerOutlet, TrackerSink
from probe.core.trackers import TRACKERS, TrackedRow, TrackerPlace, TrackerTarget
from tests.core.output.test_metrics_board import tensors
from tests.core.trackers.test_tracker_thread import Kept


class Made(Kept):
    """Tracker of which the last that was made is known."""

    last: Kept

    def __init__(self, target: TrackerTarget) -> None:
        super().__init__()
        type(self).last = self


class Silent(Made):
    """Tracker that never answers."""

    def log(self, rows: Sequence[TrackedRow]) -> None:
        self.answers.clear()
        super().log(rows)


def sink(tmp_path: Path, rank: int) -> TrackerSink:
    """The sink of W&B on one of two ranks."""
    hub = MetricsHub(RankName("job", rank, 2, "host"), lambda: tmp_path, [], Faults())
    options = load({"format": "wandb"}).sink_options
    return TrackerSink("wandb", SinkContext(tmp_path, tmp_path, rank, options=options, metrics=hub))


def test_a_tracker_that_is_not_installed_is_an_error_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the command that installs it."""
    monkeypatch.setitem(TRACKERS, "wandb", TrackerPlace("probe.core.trackers.wandb:WandbTracker", "not_there"))
    with pytest.raises(ImportError, match=r'format: wandb needs not_there.*pip install -e "\.\[wandb\]"'):
        sink(tmp_path, 0).open()


def test_one_rank_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others need no tracker and start no thread."""
    monkeypatch.setitem(TRACKERS, "wandb", TrackerPlace("probe.core.trackers.wandb:WandbTracker", "not_there"))
    other = sink(tmp_path, 1)
    other.open()
    other.write(tensors(1.0, {"fc": 3.0}))
    other.close()
    assert "wandb" not in sys.modules


def test_a_tracker_that_hangs_costs_no_other_its_last_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the end of the run waits for it first: the other one has all rows then, and its end."""
    hub = MetricsHub(RankName("job", 0, 1, "host"), lambda: tmp_path, [], Faults())
    options = load({"format": "wandb", "trackers": {"seconds": 3600}}).sink_options
    for name, kind in (("wandb", Silent), ("mlflow", Made)):
        place = TrackerPlace(f"{__name__}:{kind.__name__}", "numpy")
        monkeypatch.setitem(TRACKERS, name, place)
        each = TrackerSink(name, SinkContext(tmp_path, tmp_path, 0, options=options, metrics=hub))
        each.open()
        for _ in range(2):
            each.write(tensors(1.0, {"fc": 3.0}))
        assert kind.last.asked.wait(60)
    close, known = TrackerOutlet.close, list[object]()

    def watched(outlet: TrackerOutlet, seconds: float) -> None:
        known.append(Made.last.got[-1])
        close(outlet, seconds)

    monkeypatch.setattr(TrackerOutlet, "close", watched)
    hub.close(2.0)
    assert known[1] == "end"  # before anything waits for it
    assert Made.last.got[0] == "begin"
    assert Made.last.got[-1] == "end"
    assert hub.faults.counts["tracker wandb: TimeoutError"] == 1
    assert not any("mlflow" in place for place in hub.faults.counts)
    Silent.last.answers.set()
