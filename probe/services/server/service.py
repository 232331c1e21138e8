"""Work of the server between HTTP and the database: each function returns a status and a body."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from probe.core.alerting.channels import AlertSender
from probe.core.door import attempt
from probe.core.faults import Faults
from probe.core.run_state.heartbeat_messages import MalformedBatchError, Origin, dated, parsed
from probe.core.run_state.rules import RunRule
from probe.services.server.board import RunBoard
from probe.services.server.judge import RunJudge
from probe.services.server.store import HeartbeatStore, Outcome, Receipt
from probe.services.web.answers import Reply

_log = logging.getLogger("probe.server")

TICK_SECONDS = 0.5
"""Seconds between two looks at the promises."""
PULSE_SECONDS = 1.0
"""Least time in seconds between two proofs that the database can be written."""
PULSE_LIMIT = 5.0
"""Longest time in seconds that such a proof may take."""


MOST_WARNED = 100
"""Most senders of wrong times that are logged; the times of all are counted."""


class HeartbeatService:
    """Store, board and judge behind the endpoints. Its coroutines run on one event loop, which :meth:`begin` names.

    Raises:
        StoreError: if the database cannot be used.
    """

    def __init__(
        self,
        database: Path,
        alerts: AlertSender,
        faults: Faults,
        keep_seconds: float,
        keep_messages: int,
        rules: Sequence[Callable[[], RunRule]] = (),
    ) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._faults, self._began = faults, threading.Event()
        self.counts: Counter[tuple[str, str]] = Counter()
        """Answers by status, messages by result."""
        self.store = HeartbeatStore(database, self._settle, keep_seconds, keep_messages)
        self.board = RunBoard(keep_seconds)
        self.judge = RunJudge(self.board, alerts, faults, self.store.remember, rules)
        self._pulse: asyncio.Future[bool] | None = None
        self._pulsed = 0.0
        self._warned = set[str]()
        rows, matters = self.store.restored()
        now = time.monotonic()
        for row in rows:
            self.board.restore(row.origin, row.message, row.late, now)
        self.judge.restore(matters)

    async def follow(self) -> None:
        """Look at the promises as long as the server lives."""
        self._loop = asyncio.get_running_loop()
        self._began.set()
        while True:
            attempt(self._faults, "server: promises", self.judge.tick, time.monotonic())
            await asyncio.sleep(TICK_SECONDS)

    async def receive(self, data: bytes, path: str) -> Reply:
        """Store the messages of a request; the reply follows their commit."""
        try:
            batch, replaced = dated(parsed(data, path), time.time())
        except MalformedBatchError as error:
            return Reply(400, {"error": str(error)})
        if replaced:
            self._faults.lost("server: times that were none, such as milliseconds: that of receipt taken", replaced)
            self._warn(batch.origin)
        now = time.monotonic()
        rank = self.board.admit(batch.origin, now, batch.late)
        if rank is None:
            return Reply(429, {"error": "too many jobs or ranks"}, 60)
        self.board.receive(rank, batch, now)
        future = self._future()
        if not self.store.submit(batch, len(data), future):
            return Reply(503, {"error": "too many messages wait to be stored"}, 1)
        outcome = await future
        if not isinstance(outcome, Receipt):
            return Reply(503, {"error": "the messages could not be stored"}, 2)
        self.counts["messages", "stored"] += len(outcome.fresh)
        self.counts["messages", "known"] += outcome.repeats
        self.judge.judge(rank, outcome.fresh, batch.late)
        return Reply(200, {"stored": len(outcome.fresh), "known": outcome.repeats})

    async def works(self) -> bool:
        """Return whether the database can be written: proved by a commit, at most once a second."""
        now = time.monotonic()
        if self._pulse is None or (self._pulse.done() and now - self._pulsed > PULSE_SECONDS):
            self._pulse, self._pulsed = asyncio.ensure_future(self._prove()), now
        return await asyncio.shield(self._pulse)

    async def _prove(self) -> bool:
        future = self._future()
        if not self.store.run(HeartbeatStore.pulse, future):
            return False
        done, _ = await asyncio.wait([future], timeout=PULSE_LIMIT)
        return bool(done) and not isinstance(future.result(), Exception)

    def works_from_outside(self, seconds: float) -> bool:
        """Return the same to another thread: false too if the event loop takes longer than ``seconds``."""
        if not self._began.wait(seconds) or self._loop is None:
            return False
        try:
            return asyncio.run_coroutine_threadsafe(self.works(), self._loop).result(seconds)
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing is proved
            _log.warning("the server does not answer itself: %s", type(error).__name__)
            return False

    def _warn(self, origin: Origin) -> None:
        """Log that a sender's times are none, once for each of the first."""
        if len(self._warned) < MOST_WARNED and origin.run not in self._warned:
            self._warned.add(origin.run)
            text = "job %s, rank %d: times are none, expected seconds since the epoch; those of receipt are taken"
            _log.warning(text, origin.job, origin.rank)

    def _future(self) -> asyncio.Future[Outcome]:
        return asyncio.get_running_loop().create_future()

    def _settle(self, outcomes: list[tuple[object, Outcome]]) -> None:
        """Pass the outcomes of a transaction to the event loop; called on the thread of the store."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_complete, outcomes)


def _complete(outcomes: list[tuple[object, Outcome]]) -> None:
    for future, outcome in outcomes:
        if isinstance(future, asyncio.Future) and not future.done():
            future.set_result(outcome)
