"""A Ray cluster of several nodes on this machine, without dashboard and without statistics sent to anyone."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.required import require

OBJECT_STORE_BYTES = 80 << 20
NODE = {"num_cpus": 1, "object_store_memory": OBJECT_STORE_BYTES}
HEALTH = {"health_check_initial_delay_ms": 500, "health_check_period_ms": 500}
"""A node that is gone is found by five checks in a row, every three seconds by default."""
HEAD = {"include_dashboard": False, "_system_config": HEALTH}


@contextmanager
def ray_cluster(nodes: int, cpus: int = 1) -> Iterator[Any]:
    """A head of ``cpus`` CPUs and ``nodes`` more of one each; the signal handlers stay as they are."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    handler = signal.getsignal(signal.SIGTERM)
    utils = require("ray.cluster_utils")
    cluster = utils.Cluster(initialize_head=True, head_node_args={**NODE, **HEAD, "num_cpus": cpus})
    try:
        for _ in range(nodes):
            cluster.add_node(**NODE)
        signal.signal(signal.SIGTERM, handler)
        yield cluster
    finally:
        cluster.shutdown()
        signal.signal(signal.SIGTERM, handler)
