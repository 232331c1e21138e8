"""InternEvo's rule of losses: the ratio of a loss to the one before; besides it, losses that are not finite."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from probe.core.monitor.alarms import QUIET_STEPS
from probe.core.records import Severity

NOT_FINITE, SPIKE = "loss nan", "loss spike"
"""Names of the two matters."""


class LossNotice(NamedTuple):
    """Begin or end of a matter about the loss."""

    name: str
    severity: Severity
    title: str
    text: str
    resolved: bool = False


class LossRatio:
    """Judge of each loss. While a matter is open, its repetitions yield nothing.

    Args:
        limit: multiple of the previous loss above which a loss is a spike.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._previous: float | None = None
        """Previous finite loss."""
        self._not_finite = self._spiking = False
        self._quiet = 0

    def judge(self, step: int, loss: float) -> Iterator[LossNotice]:
        """Yield the matters that begin or end with this loss."""
        before = "none before" if self._previous is None else f"the last one before: {self._previous:.6g}"
        if not math.isfinite(loss):
            if not self._not_finite:
                self._not_finite = True
                yield LossNotice(NOT_FINITE, "critical", f"loss {loss} at step {step}", f"finite losses: {before}")
            return
        if self._not_finite:
            self._not_finite = False
            yield LossNotice(NOT_FINITE, "info", "", f"loss {loss:.6g} at step {step}", resolved=True)
        spike = self._previous is not None and loss > self._bound(self._previous)
        self._quiet = 0 if spike else self._quiet + 1
        if spike and not self._spiking:
            self._spiking = True
            text = f"{before}, the limit: {self.limit:g} times that"
            yield LossNotice(SPIKE, "warning", f"loss spike: {loss:.6g} at step {step}", text)
        elif self._spiking and self._quiet >= QUIET_STEPS:
            self._spiking = False
            yield LossNotice(SPIKE, "info", "", f"no spike in {QUIET_STEPS} steps up to step {step}", resolved=True)
        self._previous = loss

    def _bound(self, previous: float) -> float:
        """Return the largest loss that is no spike: a multiple of the previous one. Above a negative loss the distance
        is that above a positive loss of the same magnitude."""
        return self.limit * previous if previous >= 0 else previous + (self.limit - 1) * -previous
