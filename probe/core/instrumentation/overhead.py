"""The cost of the monitor, measured while it runs: on the threads of training, and on the device."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from probe.core.instrumentation.schedule import Pace

if TYPE_CHECKING:
    from probe.core.backend.protocols import DeviceClock

MEASURED_EVERY = 8
"""Sampled steps from one that is measured on the device to the next; those between are taken to cost as much."""

_log = logging.getLogger("probe")
Mark = Any
"""A moment in the order of a device's work; None where there is no device."""


Begun = Any
"""The beginning of a piece of the monitor's work: its time, with a mark where there is a clock of the device."""


class Spent(NamedTuple):
    """The cost of a sampled step on the threads of training, in seconds."""

    hooks: float
    drain: float
    spans: list[tuple[Mark, Mark]]
    """The same work on a device, from mark to mark; empty if it was not measured."""


class Cost:
    """The monitor's time during training: of the sampled step in progress, and of all steps so far.

    Args:
        clock: of the device; None if nothing is measured on it.
    """

    def __init__(self, clock: DeviceClock | None = None) -> None:
        self.clock = clock
        self._clock, self._latest = clock, 0.0
        self.hooks = 0.0
        """Seconds of the step so far; where there is no clock of a device, hooks add theirs by themselves."""
        self._spans: list[tuple[Mark, Mark]] = []
        self._taken = 0
        self.beside: Callable[[], float] = float
        """Function that returns the seconds of processor time spent so far on other threads than training."""
        self.seconds = 0.0
        """Duration of all steps so far."""
        self.on_training = 0.0
        """The monitor's part of it on the training thread."""
        self.on_device = 0.0
        """Seconds of all sampled steps on the device."""
        self._rested = 0.0
        """Seconds that it took to remove and place idle hooks since the last sampled step: its cost includes them."""
        self._at = time.perf_counter()
        """Time at which the last step ended."""
        self._between = 0.0
        """Seconds of the monitor between the last step and the one in progress."""
        self._before = (0.0, 0.0)
        """Seconds of other threads and of the device up to the last sampled step."""

    # Pieces of work in a sampled step.

    def begin(self) -> Begun:
        """Begin a piece of the monitor's work."""
        if self.clock is None:
            return time.perf_counter()
        return time.perf_counter(), None if self._taken % MEASURED_EVERY else self._now()

    def end(self, begun: Begun) -> None:
        """End a piece of work, on the thread that began it."""
        self.hooks += self._since(begun)

    def take(self, drain: Begun) -> Spent:
        """Return the cost of the step, including the drain that ends now, and begin another step."""
        seconds = self._since(drain)
        spent = Spent(self.hooks, seconds, self._spans)
        self.hooks, self._spans, self._taken = 0.0, [], self._taken + 1
        return spent

    def _since(self, begun: Begun) -> float:
        """Return the seconds since a piece of work began; note its end on the device."""
        now = time.perf_counter()
        began, mark = (begun, None) if type(begun) is float else begun
        seconds: float = now - began
        if mark is not None and (end := self._now()) is not None:
            self._spans.append((mark, end))
        return seconds

    def _now(self) -> Mark:
        if (clock := self.clock) is None:
            return None
        try:
            return clock.mark()
        except Exception as error:  # noqa: BLE001 - nothing of ours may raise into training
            self.clock = None
            _log.warning("what the monitor costs on the device is no longer measured: %s", error)
            return None

    # Steps.

    def step_ended(self, pace: Pace | None, sampled: bool, delivered: bool, hooks: float, handing: float) -> None:
        """Count the time of the step that ends now and the monitor's part of it: ``hooks``, the time since ``handing``,
        and the work before the step began.

        Args:
            delivered: whether sampled steps are delivered to an output.
        """
        now = time.perf_counter()
        seconds, monitor, self._at = now - self._at, self._between + hooks + now - handing, now
        self.seconds, self.on_training = self.seconds + seconds, self.on_training + monitor
        if pace is not None:
            pace.step(seconds, monitor, sampled)
            if sampled and delivered:
                beside, on_device = self._before
                self._before = self.beside(), self.on_device
                pace.sampled(monitor + self._rested + self._before[1] - on_device, self._before[0] - beside)
                self._rested = 0.0

    def step_begun(self) -> None:
        """Note that the monitor's work between two steps is done."""
        self._between = time.perf_counter() - self._at

    def note_rest(self, seconds: float) -> None:
        """Note the seconds in which hooks were taken out before a step."""
        self._rested += seconds

    def add_device(self, spent: Spent) -> float:
        """Return the seconds of a sampled step on the device; if it was not measured, those of the last measured one.
        Called on the delivery thread."""
        if spent.spans and self._clock is not None:
            self._latest = sum(self._clock.between(begin, end) for begin, end in spent.spans)
        self.on_device += self._latest
        return self._latest

    @property
    def total(self) -> float:
        """Seconds that the monitor has taken so far, on all threads and on the device."""
        return self.on_training + self.beside() + self.on_device

    def part(self, beside: float) -> float:
        """Return the monitor's time, with ``beside`` seconds on other threads, as a part of the time that training
        would have taken without it; 0 before the end of the first step."""
        plain = self.seconds - self.on_training
        return (self.on_training + beside + self.on_device) / plain if plain > 0 else 0.0
