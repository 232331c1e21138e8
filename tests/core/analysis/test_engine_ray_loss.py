"""A cluster that loses a node while it works: a cluster of its own."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import pytest

from probe.core.analysis.engines import engine_of, mapped
from probe.core.analysis.pieces import by_ranks
from probe.core.storage.directories import last_run
from probe.core.storage.problems import Problems
from tests.core.analysis.causes_data import write_run
from tests.core.analysis.pieces_data import Doomed
from tests.ray_cluster import NODE, ray_cluster
from tests.required import require

require("duckdb")
ray = require("ray")
pytestmark = pytest.mark.slow

RANKS = 8


def test_a_node_that_is_lost_costs_no_piece(tmp_path: Path) -> None:
    """A node is killed while a piece runs on it: every result is there once, in order, without a problem, and the
    program's handler of SIGTERM is its own in the end."""
    marks, root = tmp_path / "marks", tmp_path / "run"
    marks.mkdir()
    write_run(root, RANKS, 3)
    problems, before = Problems(), signal.getsignal(signal.SIGTERM)
    with ray_cluster(1) as cluster:
        node = cluster.add_node(**NODE)
        killer = threading.Thread(target=_lose, args=(cluster, node, marks / "running"), daemon=True)
        with engine_of(cluster.address) as engine:
            assert engine.width == 3
            assert node.node_id in [each["NodeID"] for each in ray.nodes()]
            killer.start()
            pieces = by_ranks(last_run(root, problems), least=RANKS)
            found = list(mapped(engine, Doomed(marks, node.node_id), pieces, problems))
            killer.join()
            assert (marks / "running").exists()
    assert found == [(rank,) for rank in range(RANKS)]
    assert problems.kept == []
    assert signal.getsignal(signal.SIGTERM) == before


def _lose(cluster: object, node: object, running: Path) -> None:
    """Kill a node once a piece runs on it."""
    while not running.exists():
        time.sleep(0.05)
    cluster.remove_node(node, allow_graceful=False)  # type: ignore[attr-defined]
