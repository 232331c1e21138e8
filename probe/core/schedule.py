"""Which steps are sampled."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Schedule:
    """Every ``step_interval``-th step from ``start_step`` on, ``collect_times`` times."""

    start_step: int = 0
    step_interval: int = 1
    collect_times: int = 100_000_000
    collected: int = 0

    def samples(self, step: int) -> bool:
        """Whether ``step`` is to be sampled."""
        return not self.finished and step >= self.start_step and (step - self.start_step) % self.step_interval == 0

    @property
    def finished(self) -> bool:
        """Whether nothing more will ever be sampled."""
        return self.collected >= self.collect_times
