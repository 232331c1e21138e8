"""What the monitor costs training, measured while it runs: on the threads of training, and on the device."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from probe.core.backend.protocols import DeviceClock

MEASURED_EVERY = 8
"""Of so many sampled steps one is measured on the device; until the next one they are taken to cost as much."""

_log = logging.getLogger("probe")
Mark = Any
"""A moment in the order of a device's work; None where there is no device."""


class Begun(NamedTuple):
    """The beginning of something that the monitor does."""

    time: float
    mark: Mark


class Spent(NamedTuple):
    """What a sampled step has cost on the threads of training, in seconds."""

    hooks: float
    drain: float
    spans: list[tuple[Mark, Mark]]
    """What a device did meanwhile, from mark to mark; empty if it was not measured."""


class Cost:
    """Adds up what a sampled step costs on the threads of training, and hands it over.

    Args:
        clock: of the device; None if nothing is measured there.
    """

    def __init__(self, clock: DeviceClock | None = None) -> None:
        self._clock = clock
        self.hooks = 0.0
        self._spans: list[tuple[Mark, Mark]] = []
        self._taken = 0

    def begin(self) -> Begun:
        """Something of the monitor's begins."""
        mark = None if self._clock is None or self._taken % MEASURED_EVERY else self._now()
        return Begun(time.perf_counter(), mark)

    def end(self, begun: Begun) -> None:
        """It is over, on this thread."""
        self.hooks += time.perf_counter() - begun.time
        self._span(begun)

    def take(self, drain: Begun) -> Spent:
        """What the step has cost, with the drain that is now over; another step begins."""
        seconds = time.perf_counter() - drain.time
        self._span(drain)
        spent = Spent(self.hooks, seconds, self._spans)
        self.hooks, self._spans, self._taken = 0.0, [], self._taken + 1
        return spent

    def _now(self) -> Mark:
        if (clock := self._clock) is None:
            return None
        try:
            return clock.mark()
        except Exception as error:  # noqa: BLE001 - nothing of ours may raise into training
            self._clock = None
            _log.warning("what the monitor costs on the device is no longer measured: %s", error)
            return None

    def _span(self, begun: Begun) -> None:
        if begun.mark is not None and (end := self._now()) is not None:
            self._spans.append((begun.mark, end))


class OnDevice:
    """What sampled steps have cost on the device. Used on the delivery thread.

    Args:
        clock: of the device; None if nothing is measured there.
    """

    def __init__(self, clock: DeviceClock | None) -> None:
        self._clock, self._latest = clock, 0.0
        self.seconds = 0.0
        """Of all sampled steps."""

    def add(self, spent: Spent) -> float:
        """Seconds of this step; of one that was not measured, those of the one before."""
        if spent.spans and self._clock is not None:
            self._latest = sum(self._clock.between(begin, end) for begin, end in spent.spans)
        self.seconds += self._latest
        return self._latest


class Overhead:
    """The monitor's time as a part of training's.

    Args:
        clock: of the device; None if nothing is measured there.
    """

    def __init__(self, clock: DeviceClock | None) -> None:
        self._seconds = self._own = 0.0
        self.on_device = OnDevice(clock)

    def add(self, seconds: float, own: float) -> None:
        """Counts a step that took ``seconds``, of which ``own`` were the monitor's on the training thread."""
        self._seconds += seconds
        self._own += own

    def part(self, beside: float) -> float:
        """The monitor's part, with ``beside`` seconds that it has taken on other threads; 0 before the first step has
        ended."""
        plain = self._seconds - self._own
        return (self._own + beside + self.on_device.seconds) / plain if plain > 0 else 0.0
