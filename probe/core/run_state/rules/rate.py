"""Rule about a learning rate that no schedule has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from math import isfinite
from typing import Any

from pydantic import Field as Argument

from probe.core.fields import Integer, Number, Section, Text
from probe.core.language import message
from probe.core.naming import LEARNING_RATE
from probe.core.run_state.rules.rule_memory import UNREADABLE, natural, number
from probe.core.run_state.rules.run_step import RunFinding, RunRule, RunStep

CHANGES = 3
"""Changes of a rate after which its level is that of its schedule: a warm-up by steps, or by epochs, begins with one or
two that may be a thousandfold."""


class RunRateArgs(Section):
    """Learning rates that no schedule makes."""

    names: tuple[Text, ...] = (LEARNING_RATE,)
    """Numbers that are judged as learning rates."""
    factor: Number = Argument(100.0, gt=1)
    """Factor by which a rate must be above the highest one so far."""
    warm_up: Integer = Argument(20, ge=1, le=10_000)
    """Number of rates before one is judged."""


class Track:
    """Memory of one rate."""

    def __init__(self) -> None:
        self.seen = 0
        """Number of rates so far."""
        self.changes = 0
        """Number of changes from a rate above 0."""
        self.latest, self.highest = 0.0, 0.0
        self.beyond = False
        """True while the rate that was reported lasts."""


class RunRate(RunRule):
    """Report a learning rate that leaps ``args.factor`` above the highest one of the run so far, and one below 0.

    Schedules come back to rates that they have had (cycles, restarts), and leave them in steps that a warm-up has
    prepared. So a rate is judged after ``args.warm_up`` of them, and once it has changed three times: a warm-up by
    steps or by epochs begins with a constant rate, which it may leave a thousandfold. How far a rate falls is not
    judged. A rate below 0 is reported from the first one on: it goes up the gradient, as where a linear decay is
    stepped beyond its end.
    """

    Args = RunRateArgs
    title = "Learning rate leaps"
    why = "A rate that a mistake in the schedule multiplies ends the run, or undoes it where it is below 0."
    source = "https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate"
    sees = "learning rate of the first group, at every step"
    finds = "finds a learning rate that leaps beyond all before, or is below 0"
    by_default = True

    def __init__(self, args: RunRateArgs) -> None:
        self._args = args
        self._tracks = {name: Track() for name in args.names}

    def judge(self, step: RunStep) -> Iterator[RunFinding]:
        for name, track in self._tracks.items():
            rate = step.values.get(name)
            if rate is not None and isfinite(rate):
                yield from self._judge(name, track, float(rate), step.step)

    def _judge(self, name: str, track: Track, rate: float, step: int) -> Iterator[RunFinding]:
        expected, text = 0.0, message("{name} is {rate:.6g} at step {step}, below 0", name=name, rate=rate, step=step)
        beyond = rate < 0
        if rate > self._args.factor * track.highest and self._is_ready(track):
            expected, beyond = track.highest, True
            text = message(
                "{name} leapt to {rate:.6g} at step {step}; the highest of {seen} before: {expected:.6g}",
                name=name,
                rate=rate,
                step=step,
                seen=track.seen,
                expected=expected,
            )
        if beyond and not track.beyond:
            yield RunFinding("RunRate", name, step, rate, expected, text, "warning")
        elif track.beyond and not beyond and rate != track.latest:
            text = message("{name} is {rate:.6g} at step {step} again", name=name, rate=rate, step=step)
            yield RunFinding("RunRate", name, step, rate, float("nan"), text, "warning", True)
        self._remember(track, rate, beyond)

    def _is_ready(self, track: Track) -> bool:
        return track.highest > 0 and track.seen >= self._args.warm_up and track.changes >= CHANGES

    def _remember(self, track: Track, rate: float, beyond: bool) -> None:
        track.beyond = beyond or (track.beyond and rate == track.latest)
        track.changes += int(track.latest > 0 and rate != track.latest)
        track.seen, track.latest, track.highest = track.seen + 1, rate, max(track.highest, rate)

    def state_dict(self) -> dict[str, Any]:
        return {name: {**vars(track), "beyond": int(track.beyond)} for name, track in self._tracks.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name in self._tracks:
            with suppress(*UNREADABLE):
                track, memory = Track(), state[name]
                track.seen, track.changes = natural(memory, "seen"), natural(memory, "changes")
                track.latest, track.highest = number(memory, "latest"), number(memory, "highest")
                track.beyond = bool(natural(memory, "beyond"))
                self._tracks[name] = track
