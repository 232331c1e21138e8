"""The watcher of a node on which ranks wait for each other in a collective of PyTorch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.required import require
from tests.services.node import Node

require("torch")
pytestmark = pytest.mark.torch


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.close()


def test_a_collective_that_waits_for_one_rank(node: Node) -> None:
    """The alert names the collective in which rank 0 waits, and rank 1 as the one that is elsewhere."""
    node.start([], [], program="tests.services.gloo_rank")
    alert = node.alert("hang")
    assert alert["labels"]["rank"] == "1"
    assert re.search(
        r"rank 0 waits in all_reduce \(torch/distributed/distributed_c10d\.py:\d+, called at gloo_rank\.py:\d+\) after "
        r"step 29; rank 1 does not: it is in slow_preprocessing \(gloo_rank\.py:\d+\) after step 29",
        alert["title"],
    )
