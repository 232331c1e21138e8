"""The exchange of numbers of whole tensors between ranks (``global_stats``), and the order of writing steps."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from probe.core.distributed.global_stats import GlobalStats
from probe.core.distributed.replicas import compared
from probe.core.distributed.whole_tensors import Line, Wholes
from probe.core.instrumentation.context import Run
from probe.core.records import Snapshot
from probe.core.worker import Worker

SAME = {"ops", "eps", "start_step", "step_interval", "collect_times"}
"""Configuration keys in which ranks must agree."""


class GlobalExchange:
    """Writer of steps, in order: each once the numbers of other ranks have arrived, or at once without an exchange.

    Args:
        number: number of the run, the same on all ranks.
    """

    def __init__(self, run: Run, number: int, delivery: Worker) -> None:
        self._number, self._delivery, self._line = number, delivery, Line(run.faults)
        self.seconds = 0.0
        """Processor time of the exchange."""
        self._wholes = self._exchange_of(run)
        self.begun = self._wholes is not None
        """True once ranks have exchanged numbers: until then each step is written at once."""

    @property
    def active(self) -> bool:
        """True if ranks exchange numbers."""
        return self._wholes is not None

    @property
    def pending(self) -> bool:
        """True if a delivered step is not written yet."""
        return bool(self._line)

    def write(self, snapshot: Snapshot, write: Callable[[Snapshot], None]) -> None:
        """Call ``write`` when all steps before ``snapshot`` are written, with the batches that all ranks know if they
        exchange numbers. Call on the delivery thread."""
        if self._wholes is None and not self._line.places:
            write(snapshot)
            return
        offer = None if self._wholes is None else self._wholes.offer(snapshot.step, snapshot.batches)
        self._line.add(offer, lambda known: write(snapshot if offer is None else replace(snapshot, batches=known)))

    def change(self, run: Run, then: Callable[[], None]) -> Callable[[], None]:
        """Return a function that begins the exchange for ``run`` and calls ``then`` once all steps before it are
        written. Call that function on the delivery thread."""
        wholes = self._exchange_of(run)

        def act() -> None:
            before, self._wholes = self._wholes, wholes
            self.begun |= wholes is not None
            self._line.add(None, lambda _: finish(before))

        def finish(before: Wholes | None) -> None:
            if before is not None:
                before.close()
            then()

        return act

    def end(self) -> None:
        """Stop waiting for other ranks. Callable on any thread."""
        self._line.end()

    def advance(self) -> None:
        """Write every step that is due, in order. Call on the delivery thread."""
        self._line.advance()

    def close(self, timeout: float = 0.0) -> None:
        """End the exchange's thread, and wait for it at most ``timeout`` seconds."""
        if self._wholes is not None:
            self._wholes.close(timeout)

    def _exchange_of(self, run: Run) -> Wholes | None:
        settings, groups = run.settings, run.framework.groups
        if not settings.global_stats or groups.world_size() == 1:
            return None
        same = json.dumps(settings.model_dump(mode="json", include=SAME) | {"first": run.clock.step}, sort_keys=True)
        rules = {rule.rule_name for rule in settings.alert.rules}
        replicas, assumed = compared(rules, run.framework.parallel, run.replicas, groups.world_size())
        stats = GlobalStats(
            run.framework.parallel,
            f"run {self._number} from step {run.clock.step}",
            same,
            settings.statistics,
            settings.global_stats_seconds,
            run.faults,
            replicas,
            assumed,
        )

        def took(seconds: float) -> None:
            self.seconds += seconds

        return Wholes(stats, lambda: self._delivery.submit(self._line.advance, must=True), took, run.faults)
