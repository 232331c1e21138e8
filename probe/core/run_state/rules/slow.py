"""Rule about a run that has become slower than it was at its best."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from math import isfinite
from typing import Any

from pydantic import Field as Argument

from probe.core.fields import Integer, Number, Section, Threshold
from probe.core.language import message
from probe.core.naming import PHASE, STEP_SECONDS, THROUGHPUT
from probe.core.run_state.rules.rule_memory import LONGEST, UNREADABLE, median, number, numbers
from probe.core.run_state.rules.run_step import RunFinding, RunRule, RunStep

PACE = 0.01
"""Weight of a step in the share of steps that have a phase."""


class RunSlowArgs(Section):
    """Throughput against its own best stretch."""

    factor: Number = Argument(1.5, gt=1)
    """Factor by which the run must be slower than in its best stretch."""
    window: Integer = Argument(50, ge=2, le=10_000)
    """Number of steps of a stretch, whose median counts; so a run is reported when half as many were slow."""
    seconds: Threshold = 30.0
    """Least time of a stretch in seconds. Where steps are so short that window of them take less, as many steps as are
    needed count as one."""
    warm_up: Integer = Argument(20, ge=0)
    """Number of steps at the beginning of a process that are left out."""


class RunSlow(RunRule):
    """Report that the median throughput of the last ``args.window`` steps is ``args.factor`` below that of the best
    stretch so far.

    The best of a run is never forgotten, so a decline that is too slow for a moving average is found. It is the second
    best of all stretches, one after another, so that one stretch of steps that had little to do is no standard.

    Throughput is the number ``throughput``, or the steps a second if there is none. Left out are the first steps of a
    process, and steps with a phase that less than half of the latest steps had: saving and evaluation make a step long,
    but loading data in each step is part of it.

    It is reported once until the run is back, which is reported too: half of the way from the limit to the best.
    """

    Args = RunSlowArgs
    title = "Slow run"
    why = "A run that slows down by a third costs half as much again, and nothing fails."
    source = "https://arxiv.org/abs/2402.15627"
    sees = "throughput or the time of each step"
    finds = "finds a throughput that stays below that of the run's best stretch"
    by_default = True

    def __init__(self, args: RunSlowArgs) -> None:
        self._args = args
        self._seen = 0
        self._name = STEP_SECONDS
        self._work, self._time = 0.0, 0.0
        """Work and seconds of the steps that count as one."""
        self._speeds = deque[float](maxlen=args.window)
        self._since = 0
        """Number of speeds since the last stretch."""
        self._best: list[float] = []
        """The two highest speeds of a stretch, the higher one first."""
        self._shares: dict[str, float] = {}
        """Share of the latest steps that had a phase."""
        self._open = False

    def judge(self, step: RunStep) -> Iterator[RunFinding]:
        usual = self._has_usual_phases(step.values)
        seconds = step.values.get(STEP_SECONDS, step.seconds)
        speed = self._speed(step.values, seconds)
        if speed is None:
            return
        self._seen += 1
        if self._seen <= self._args.warm_up or not usual:
            return
        self._work, self._time = self._work + speed * seconds, self._time + seconds
        if self._time * self._args.window < self._args.seconds:
            return
        self._speeds.append(self._work / self._time)
        self._work, self._time, self._since = 0.0, 0.0, self._since + 1
        if len(self._speeds) == self._args.window:
            yield from self._compare(step.step, median(self._speeds))

    def _has_usual_phases(self, values: Mapping[str, float]) -> bool:
        """Count the phases of a step; return whether it has those only that most steps have."""
        phases = {name for name, value in values.items() if name.startswith(PHASE) and value > 0}
        usual = all(self._shares.get(name, 0.0) > 0.5 for name in phases)
        for name in phases.union(self._shares) if len(self._shares) < LONGEST else self._shares:
            share = self._shares.get(name, 0.0)
            self._shares[name] = share + PACE * ((name in phases) - share)
        return usual

    def _speed(self, values: Mapping[str, float], seconds: float) -> float | None:
        """Return the throughput, or steps a second as long as there was none; None if that is no positive number."""
        if THROUGHPUT in values and self._name != THROUGHPUT:
            self._name, self._since, self._best, self._open = THROUGHPUT, 0, [], False
            self._work, self._time = 0.0, 0.0
            self._speeds.clear()
        if not (isfinite(seconds) and seconds > 0):
            return None
        speed = values.get(THROUGHPUT, 0.0) if self._name == THROUGHPUT else 1 / seconds
        return speed if isfinite(speed) and speed > 0 else None

    def _compare(self, step: int, current: float) -> Iterator[RunFinding]:
        if self._since >= self._args.window:
            self._best = sorted([*self._best, current], reverse=True)[:2]
            self._since = 0
        best = self._best[-1] if self._best else current
        if not self._open and current * self._args.factor < best:
            self._open = True
            yield self._finding(step, current, best)
        elif self._open and current * (1 + self._args.factor) / 2 >= best:
            self._open = False
            yield self._finding(step, current, best, resolved=True)

    def _finding(self, step: int, current: float, best: float, resolved: bool = False) -> RunFinding:
        value, expected = (current, best) if self._name == THROUGHPUT else (1 / current, 1 / best)
        text = message(
            "{name} is back at {value:.4g} in the median of the latest stretch, at step {step}; best stretch {best:.4g}"
            if resolved
            else "{name} is {value:.4g} in the median of the latest stretch, at step {step}; best stretch {best:.4g}",
            name=self._name,
            value=value,
            step=step,
            best=expected,
        )
        return RunFinding("RunSlow", self._name, step, value, expected, text, "warning", resolved)

    def state_dict(self) -> dict[str, Any]:
        return {
            "name": self._name,
            "speeds": list(self._speeds),
            "since": self._since,
            "best": list(self._best),
            "shares": dict(self._shares),
            "open": self._open,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        with suppress(*UNREADABLE):
            speeds, best, since = numbers(state, "speeds"), numbers(state, "best"), int(number(state, "since"))
            shares = {str(name): number(state["shares"], name) for name in state["shares"]}
            name, opened = (
                {number_name: number_name for number_name in (THROUGHPUT, STEP_SECONDS)}[state["name"]],
                bool(state["open"]),
            )
            if any(speed <= 0 for speed in [*speeds, *best]):
                return
            self._speeds, self._best = deque(speeds, maxlen=self._args.window), sorted(best, reverse=True)[:2]
            self._name, self._since, self._shares, self._open, self._seen = name, since, shares, opened, 0
