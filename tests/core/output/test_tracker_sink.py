"""The sink of trackers, without any tracker."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from probe.core.config.load import load
from probe.core.faults import Faults
from probe.core.output.metrics.hub import MetricsHub, RankName
from probe.core.output.sinks.context import SinkContext
from probe.core.output.sinks.tracker import TrackerSink
from probe.core.trackers import TRACKERS, TrackerPlace
from tests.core.output.test_metrics_board import tensors


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
