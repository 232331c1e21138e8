"""Heartbeats of a watched run: its numbers at every step, its findings, and the exception that ends it."""

from __future__ import annotations

import math
import os
import socket
import traceback
from collections.abc import Sequence
from pathlib import Path

from probe.core.faults import Faults
from probe.core.records import Finding
from probe.core.run_state.heartbeats import Heartbeats
from probe.core.run_state.rules import RunFinding, RunStep

TOKEN = "PROBE_SERVER_TOKEN"  # noqa: S105 - the name of a variable
"""Environment variable of the server's token."""
LEAST_SECONDS, TIMES = 60.0, 10.0
"""A rank promises its next step within so many seconds, and within so many times its longest step."""
MOST_FINDINGS = 5
"""Findings of one step that are sent."""


class HeartbeatFeed:
    """Sender of the heartbeats of one run on one rank.

    Args:
        address: of the server.
        spool: folder for messages that could not be sent.

    Raises:
        ValueError: if the address or the token cannot be one.
        ImportError: if httpx is missing.
    """

    def __init__(self, address: str, job: str, rank: int, ranks: int, faults: Faults, spool: Path) -> None:
        token = os.environ.get(TOKEN) or None
        self._sender = Heartbeats(
            address, token=token, job=job, rank=rank, world_size=ranks, faults=faults, spool=spool
        )
        self._longest = 0.0

    def begun(self, step: int, seconds: float) -> None:
        """Send that the first step is ``step``, which ends within ``seconds``."""
        self._sender.send("progress", {"step": step, "state": "started", "host": socket.gethostname()}, promise=seconds)

    def step(self, step: RunStep) -> None:
        """Send the numbers of a step."""
        if math.isfinite(step.seconds):
            self._longest = max(self._longest, step.seconds)
        promise = max(LEAST_SECONDS, TIMES * self._longest)
        self._sender.send("train_metrics", {"step": step.step, **step.values}, promise=promise)

    def run_found(self, findings: Sequence[RunFinding]) -> None:
        """Send findings about numbers of the run."""
        for each in findings:
            about = {"rule": each.rule, "name": each.name, "step": each.step, "text": each.message}
            self._sender.send("finding", about | {"severity": each.severity, "resolved": each.resolved})

    def found(self, step: int, findings: Sequence[Finding]) -> None:
        """Send the first findings of a sampled step."""
        for each in findings[:MOST_FINDINGS]:
            about = {"rule": each.rule, "name": f"{each.signal} {each.key.name}", "step": step, "text": each.message}
            self._sender.send("finding", about | {"severity": "warning", "resolved": False})

    def failed(self, error: BaseException) -> None:
        """Send the exception that ends training."""
        text = "".join(traceback.format_exception(error))
        about = {"type": type(error).__name__, "text": text, "host": socket.gethostname()}
        self._sender.send("exception", about)

    def close(self, seconds: float) -> None:
        """Send the last message within ``seconds``: an ended rank is not silent."""
        self._sender.close(seconds)
