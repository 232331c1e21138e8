"""The order in which steps are written while other ranks are asked for the rest of their tensors (``global_stats``)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from probe.core.distributed.global_stats import GlobalStats
from probe.core.distributed.replicas import compared
from probe.core.distributed.whole_tensors import Line, Wholes
from probe.core.instrumentation.context import Run
from probe.core.output.delivery import Delivery
from probe.core.records import Batch

SAME = {"ops", "eps", "start_step", "step_interval", "collect_times"}
"""Keys in which ranks must agree."""


class GlobalExchange:
    """Writes each step once other ranks' numbers have come, in order; at once where none are asked for.

    Args:
        number: of the run, the same on all ranks.
    """

    def __init__(self, run: Run, number: int, delivery: Delivery) -> None:
        self._number, self._delivery, self._line = number, delivery, Line(run.faults)
        self.seconds = 0.0
        """Processor time of the exchange."""
        self._wholes = self._exchange_of(run)

    @property
    def active(self) -> bool:
        """Whether other ranks are asked."""
        return self._wholes is not None

    @property
    def pending(self) -> bool:
        """Whether a step that was delivered is not written yet."""
        return bool(self._line)

    def write(self, step: int, batches: Sequence[Batch], write: Callable[[list[Batch] | None], None]) -> None:
        """Calls ``write`` when the turn of ``step`` has come, with the batches that all ranks know of, or None if no
        rank is asked; on the delivery thread."""
        offer = None if self._wholes is None else self._wholes.offer(step, batches)
        self._line.add(offer, lambda known: write(known if offer is not None else None))

    def change(self, run: Run, then: Callable[[], None]) -> Callable[[], None]:
        """Exchanges the tensors of ``run`` from now on: returns the function that makes the change, on the delivery
        thread, which calls ``then`` once all steps before it are written."""
        wholes = self._exchange_of(run)

        def act() -> None:
            before, self._wholes = self._wholes, wholes
            self._line.add(None, lambda _: finish(before))

        def finish(before: Wholes | None) -> None:
            if before is not None:
                before.close()
            then()

        return act

    def end(self) -> None:
        """Waits for no other rank any more; on any thread."""
        self._line.end()

    def advance(self) -> None:
        """Writes every step whose turn has come; on the delivery thread."""
        self._line.advance()

    def close(self, timeout: float = 0.0) -> None:
        """Ends the exchange's thread, for which this waits at most ``timeout`` seconds."""
        if self._wholes is not None:
            self._wholes.close(timeout)

    def _exchange_of(self, run: Run) -> Wholes | None:
        stats = self._global_stats(run)
        if stats is None:
            return None
        return Wholes(stats, lambda: self._delivery.wake(self._line.advance), self._took, run.faults)

    def _took(self, seconds: float) -> None:
        self.seconds += seconds

    def _global_stats(self, run: Run) -> GlobalStats | None:
        settings, groups = run.settings, run.framework.groups
        if not settings.global_stats or groups.world_size() == 1:
            return None
        same = json.dumps(settings.model_dump(mode="json", include=SAME) | {"first": run.clock.step}, sort_keys=True)
        return GlobalStats(
            run.framework.parallel,
            f"run {self._number} from step {run.clock.step}",
            same,
            settings.statistics,
            settings.global_stats_seconds,
            run.faults,
            compared(
                {rule.rule_name for rule in settings.alert.rules},
                run.framework.parallel,
                run.replicas,
                groups.world_size(),
            ),
        )
