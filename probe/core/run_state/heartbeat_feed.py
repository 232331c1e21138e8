"""Heartbeats of a watched run: its numbers at every step, its findings, and the exception that ends it."""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Sequence
from pathlib import Path
from time import monotonic_ns

from probe.core.faults import Faults
from probe.core.records import Finding
from probe.core.run_state.budget import OwnBudget, promise_of
from probe.core.run_state.heartbeats import Heartbeats
from probe.core.run_state.rules import RunFinding, RunStep

TOKEN = "PROBE_SERVER_TOKEN"  # noqa: S105 - the name of a variable
"""Environment variable of the server's token."""
LOOK_SECONDS = 1.0
"""Time that a phase lasts before it is sent: shorter ones end within the promise of the step before."""
NETWORK_SECONDS = 2.0
"""Network allowance, added to each promise: time until the next look, and for the request."""
MOST_FINDINGS = 5
"""Findings of one step that are sent."""


class HeartbeatFeed:
    """Sender of the heartbeats of one run on one rank. Each has what is left of the rank's own budget as its promise,
    and the phase: the server judges by nothing else.

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
        self._budget: OwnBudget | None = None
        self._sent: tuple[str, int] = "", 0
        """Phase and end of a promise that were sent last."""

    def begun(self, step: int, seconds: float) -> None:
        """Send that the first step is ``step``, which ends within ``seconds``."""
        self._sender.send("progress", {"step": step, "state": "started", "host": socket.gethostname()}, promise=seconds)

    def judge_by(self, budget: OwnBudget) -> None:
        """Promise by ``budget`` from now on."""
        self._budget = budget

    def step(self, step: RunStep) -> None:
        """Send the numbers of a step."""
        promise = None
        if self._budget is not None:
            row, seconds_left = self._budget.look(monotonic_ns())
            promise, self._sent = promise_of(seconds_left) + NETWORK_SECONDS, (row.phase, row.until)
        self._sender.send("train_metrics", {"step": step.step, **step.values}, promise=promise)

    def look(self) -> None:
        """Send a phase or a promise that is new and goes on; called about once a second."""
        if self._budget is None:
            return
        now = monotonic_ns()
        row, seconds_left = self._budget.look(now)
        if (row.phase, row.until) != self._sent and now - row.time >= LOOK_SECONDS * 1e9 and seconds_left > 0:
            self._sent = row.phase, row.until
            self._sender.send(
                "progress", {"step": row.step, "phase": row.phase}, promise=promise_of(seconds_left) + NETWORK_SECONDS
            )

    def run_found(self, findings: Sequence[RunFinding]) -> None:
        """Send findings about numbers of the run."""
        for finding in findings:
            values = {"rule": finding.rule, "name": finding.name, "step": finding.step, "text": finding.message}
            self._sender.send("finding", values | {"severity": finding.severity, "resolved": finding.resolved})

    def found(self, step: int, findings: Sequence[Finding]) -> None:
        """Send the first findings of a sampled step."""
        for finding in findings[:MOST_FINDINGS]:
            name = f"{finding.signal} {finding.key.name}"
            values = {"rule": finding.rule, "name": name, "step": step, "text": finding.message}
            self._sender.send("finding", values | {"severity": "warning", "resolved": False})

    def failed(self, error: BaseException) -> None:
        """Send the exception that ends training."""
        text = "".join(traceback.format_exception(error))
        values = {"type": type(error).__name__, "text": text, "host": socket.gethostname()}
        self._sender.send("exception", values)

    def close(self, seconds: float) -> None:
        """Send the last message within ``seconds``: an ended rank is not silent."""
        self._sender.close(seconds)
