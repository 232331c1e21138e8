"""The order in which steps are written, while numbers of whole tensors are exchanged between ranks (``global_stats``).

A step is written once, when the exchange is done with it and all steps before it are written. If another rank is late,
a bounded number of steps wait; the oldest is then written without the numbers of whole tensors.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from probe.core.distributed.global_stats import GlobalStats
from probe.core.distributed.replicas import compared
from probe.core.distributed.whole_tensors import ExchangedStep, ExchangeThread
from probe.core.door import attempt
from probe.core.faults import Faults
from probe.core.instrumentation.context import Run
from probe.core.records import Batch, Snapshot
from probe.core.worker import Worker

SAME = {"ops", "eps", "start_step", "step_interval", "collect_times"}
"""Configuration keys in which ranks must agree."""
WAITING = 32
"""Most steps that wait for other ranks, unwritten."""
LATE = "global statistics: steps written before all ranks had come"


class _Turn(NamedTuple):
    """Action to be done in its turn."""

    step: ExchangedStep | None
    """Step that it waits for."""
    act: Callable[[Sequence[Batch]], None]
    """Function to call with the batches of ``step``."""


class WriteOrder:
    """Writer of steps, in order: each once the numbers of other ranks have arrived, or at once without an exchange.
    Used on the delivery thread, except for what is marked otherwise.

    Args:
        delivery: the thread that writes.
    """

    def __init__(self, faults: Faults, delivery: Worker) -> None:
        self._faults, self._delivery = faults, delivery
        self._exchange: ExchangeThread | None = None
        self.begun = False
        """True once ranks have exchanged numbers: until then each step is written at once."""
        self.seconds = 0.0
        """Processor time of the exchange."""
        self._turns: deque[_Turn] = deque()
        """Actions whose turn has not come."""
        self._steps = 0
        """Number of them that wait for a step of the exchange."""
        self._ending = False

    @property
    def active(self) -> bool:
        """True if ranks exchange numbers; on any thread."""
        return self._exchange is not None

    @property
    def pending(self) -> bool:
        """True if a delivered step is not written yet; on any thread."""
        return bool(self._turns)

    def thread(self, stats: GlobalStats) -> ExchangeThread:
        """Return a thread of the exchange, which has what is ready written."""
        return ExchangeThread(stats, self._wake, self._spend, self._faults)

    def _wake(self) -> None:
        self._delivery.submit(self.advance, must=True)

    def _spend(self, seconds: float) -> None:
        self.seconds += seconds

    def begin(self, exchange: ExchangeThread | None) -> None:
        """Exchange numbers by ``exchange`` from now on; None if ranks exchange none."""
        self._exchange = exchange
        self.begun |= exchange is not None

    def write(self, snapshot: Snapshot, write: Callable[[Snapshot], None]) -> None:
        """Call ``write`` when all steps before ``snapshot`` are written, with the batches that all ranks know if they
        exchange numbers."""
        if self._exchange is None:
            if self._turns:
                self._add(None, lambda _: write(snapshot))
            else:
                write(snapshot)
            return
        step = self._exchange.add(snapshot.step, snapshot.batches)
        self._add(step, lambda batches: write(replace(snapshot, batches=batches)))

    def change(self, exchange: ExchangeThread | None, then: Callable[[], None]) -> None:
        """Exchange numbers by ``exchange`` from now on, and call ``then`` once all steps before are written."""
        before = self._exchange
        self.begin(exchange)

        def finish(_: Sequence[Batch]) -> None:
            if before is not None:
                before.close()
            then()

        self._add(None, finish)

    def end(self) -> None:
        """Stop waiting for other ranks; on any thread."""
        self._ending = True

    def close(self, timeout: float = 0.0) -> None:
        """End the exchange's thread, and wait for it at most ``timeout`` seconds; on any thread."""
        if self._exchange is not None:
            self._exchange.close(timeout)

    def _add(self, step: ExchangedStep | None, act: Callable[[Sequence[Batch]], None]) -> None:
        """Add an action at the end, and do what is ready."""
        self._turns.append(_Turn(step, act))
        self._steps += step is not None
        self.advance()

    def advance(self) -> None:
        """Do what is ready, in order."""
        while self._turns:
            step, act = self._turns[0]
            if step is not None and step.result is None and self._steps <= WAITING and not self._ending:
                return
            try:  # later actions have their turn whatever is raised
                attempt(self._faults, "delivery", act, self._batches(step))
            finally:
                self._steps -= step is not None
                self._turns.popleft()

    def _batches(self, step: ExchangedStep | None) -> Sequence[Batch]:
        if step is None:
            return []
        if step.result is not None:
            return step.result
        self._faults.lost(LATE, 1)
        return step.without()


def exchange_of(run: Run, number: int, order: WriteOrder) -> ExchangeThread | None:
    """Return the exchange as ``run`` configures it; None if ranks exchange nothing.

    Args:
        number: number of the run, the same on all ranks.
    """
    settings, groups = run.settings, run.framework.groups
    if not settings.global_stats or groups.world_size() == 1:
        return None
    same = json.dumps(settings.model_dump(mode="json", include=SAME) | {"first": run.clock.step}, sort_keys=True)
    rules = {rule.rule_name for rule in settings.alert.rules}
    replicas, assumed = compared(rules, run.framework.parallel, run.replicas, groups.world_size())
    stats = GlobalStats(
        run.framework.parallel,
        f"run {number} from step {run.clock.step}",
        same,
        settings.statistics,
        settings.global_stats_seconds,
        run.faults,
        replicas,
        assumed,
    )
    return order.thread(stats)
