"""The steps that are sampled."""

from __future__ import annotations

from dataclasses import dataclass

from probe.core.instrumentation.pace import Pace


@dataclass
class Schedule:
    """Every ``step_interval``-th step from ``start_step`` on, ``collect_times`` times; fewer with a ``pace``."""

    start_step: int = 0
    step_interval: int = 1
    collect_times: int = 100_000_000
    pace: Pace | None = None
    collected: int = 0
    last: int | None = None
    """The step that was sampled last."""

    def samples(self, step: int) -> bool:
        """True if ``step`` is to be sampled."""
        if self.finished or step < self.start_step or (step - self.start_step) % self.step_interval:
            return False
        return self.pace is None or self.last is None or step - self.last >= self.pace.interval

    def ended(self, step: int, sampled: bool) -> None:
        """Count ``step``, which has ended."""
        if sampled:
            self.last = step
            self.collected += 1
        elif self.pace is not None and not self.finished and step >= self.start_step:
            self.pace.skipped += (step - self.start_step) % self.step_interval == 0

    @property
    def finished(self) -> bool:
        """True if no further step will be sampled."""
        return self.collected >= self.collect_times
