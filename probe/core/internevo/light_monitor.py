"""Heartbeats with InternEvo's names, to the server of ``probe serve``: loss, gradient norm, seconds of stages."""

from __future__ import annotations

import math
import os
import threading
import time
import traceback
from collections.abc import Mapping

from probe.core.internevo.recipients import recipients
from probe.core.launch import WORLDS, launched
from probe.core.monitor.alarms import Cause, job_name
from probe.core.monitor.process_exit import Endings
from probe.core.run_state.budget import Budget, OwnBudget, promise_of
from probe.core.run_state.heartbeats import Heartbeats
from probe.core.run_state.progress import Progress
from probe.core.storage.run_directory import output_root

ADDRESS_VARIABLE, TOKEN_VARIABLE = "MONITOR_SERVER", "PROBE_SERVER_TOKEN"
CLOSE_SECONDS = 2.0
"""Longest time in seconds that the end of the process waits for the server."""
STARTUP_SECONDS, FLOOR_SECONDS = 1800.0, 300.0
"""Budget until there have been two heartbeats of training, and the shortest one after that."""
PACE = "train_metrics"
"""Kind of the heartbeats of training."""
SPOOL = "heartbeats"
"""Folder in the output directory for messages that could not be sent."""


class LightMonitor:
    """Client of the heartbeat server.

    Raises:
        ValueError: if the address or the token is none.
        ImportError: if httpx is not installed.
    """

    def __init__(self, address: str, environ: Mapping[str, str]) -> None:
        self.address = address
        known = recipients()
        self._heartbeats = Heartbeats(
            address if "://" in address else f"http://{address}",
            token=environ.get(TOKEN_VARIABLE) or None,
            job=job_name(known.job),
            rank=known.rank,
            world_size=max(launched(environ, WORLDS, 1), known.rank + 1),
            faults=known.faults,
            spool=output_root(environ).absolute() / SPOOL,
        )
        self._progress = Progress(None, known.rank, 1, "")
        self._budget = OwnBudget(self._progress, Budget(FLOOR_SECONDS, STARTUP_SECONDS))
        self._endings = Endings(self._ended, self._survived)
        self.process = os.getpid()
        self._heartbeats.send("progress", {"state": "begun"})

    def send(self, kind: str, values: Mapping[str, object]) -> None:
        """Send values, with a promise of the next ones. Returns at once."""
        if kind == PACE:
            self._progress.step(self._progress.row().step + 1)
        _, left = self._budget.look(time.monotonic_ns())
        self._heartbeats.send(kind, values, promise_of(left))

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Send what waits within ``seconds``, and that no more follows; the rest is kept for the next run."""
        self._endings.remove()
        self._progress.close()
        self._heartbeats.close(seconds)

    def _ended(self, cause: Cause, error: BaseException | None) -> None:
        if cause == "exception" and error is not None:
            about = {"type": type(error).__name__, "text": "".join(traceback.format_exception(error)).rstrip()}
            self._heartbeats.send("exception", about, math.inf)
        self.close()

    def _survived(self) -> None:
        """Do nothing: training goes on, and so do heartbeats."""


_current: LightMonitor | None = None
_lock = threading.RLock()


def initialize_light_monitor(monitor_address: str | None = None) -> None:
    """Connect to a heartbeat server, in the background. Without an address nothing is done.

    Call it before training, within ``initialize_monitor_manager``, which knows the name of the job. A token for the
    server is read from the variable PROBE_SERVER_TOKEN.

    Args:
        monitor_address: address of the server, such as ``http://10.0.0.1:8765``; missing: that in the variable
            MONITOR_SERVER.

    Raises:
        ValueError: if the address or the token is none.
        ImportError: if httpx is not installed.
    """
    global _current  # noqa: PLW0603 - one connection a process
    address = (monitor_address or os.environ.get(ADDRESS_VARIABLE, "")).strip()
    if not address:
        return
    with _lock:
        before = _current if _current is not None and _current.process == os.getpid() else None
        if before is not None and before.address == address:
            return
        _current = LightMonitor(address, os.environ)
        if before is not None:
            before.close()


def send_heartbeat(msg_type: str, msg: Mapping[str, object]) -> None:
    """Send a heartbeat. Returns at once and raises nothing; before :func:`initialize_light_monitor` nothing is sent.

    Args:
        msg_type: ``train_metrics``, ``init_time`` or ``stage_time``.
        msg: numbers and texts by name; ``{"a": {"b": 1}}`` is sent as ``{"a_b": 1}``, and NaN stays NaN.
    """
    current = _current
    if current is not None and current.process == os.getpid():
        recipients().attempt(lambda: current.send(msg_type, msg))
