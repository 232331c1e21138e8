"""Rule about a loss or a gradient norm that leaps."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import nlargest
from itertools import islice
from math import asinh, exp, inf, isfinite, log, sinh
from typing import Any

from pydantic import Field as Argument
from pydantic import ValidationInfo, field_validator

from probe.core.fields import Integer, Number, Section, Text, Threshold
from probe.core.language import message
from probe.core.naming import GRAD_NORM, LOSS
from probe.core.robust import MAD_TO_SIGMA
from probe.core.rules.about import not_more_than_window
from probe.core.run_state.rules.rule_memory import UNREADABLE, median, natural, number, numbers
from probe.core.run_state.rules.run_step import RunFinding, RunRule, RunStep

REPEATS = 3
"""Spikes in a window after which others of their size are usual."""
ROW = 3
"""Number of values in a row that are a spike though none of them would be alone."""
FADING = 0.9998
"""Factor with which the greatest level is forgotten at each value."""
FIRST = 4
"""Number of values of which the first level is made."""
CALM = 3
"""Number of usual values in a row after which a spike has ended."""


class RunSpikeArgs(Section):
    """Leaps against the recent past."""

    losses: tuple[Text, ...] = (LOSS,)
    """Numbers that are judged as losses: they may be 0 or negative."""
    gradients: tuple[Text, ...] = (GRAD_NORM,)
    """Numbers that are judged as gradient norms, by their logarithm. Zeros are left out."""
    recent: Integer = Argument(16, ge=1, le=10_000)
    """Number of values before one whose median it is compared with: a leap takes less than half as many steps; what
    takes longer, such as the rise after a restart of the learning rate, is none."""
    window: Integer = Argument(200, ge=10, le=10_000)
    """Number of values whose leaps show how far usual ones go."""
    warm_up: Integer = Argument(50, ge=5, le=10_000, validate_default=True)
    """Number of leaps before one is judged. Not more than window."""
    threshold: Number = Argument(6.0, gt=0)
    """Least leap that is reported, in robust standard deviations of the leaps of the window."""
    margin: Number = Argument(2.0, ge=1)
    """Factor by which a single leap must be farther out than the largest one of the window; for losses on a scale that
    is logarithmic beyond a standard deviation, so that noisy losses with heavy tails are judged by their own tails."""
    min_ratio: Number = Argument(1.2, ge=1)
    """Factor by which a loss must also rise."""
    min_ratio_gradients: Number = Argument(8.0, gt=1)
    """Factor by which a gradient norm must also rise."""
    share: Threshold = 0.02
    """Share of the highest level so far, forgotten over thousands of steps, that a leap must reach: leaps of a loss
    that is next to nothing are not reported."""
    cool_down: Integer = Argument(20, ge=1, le=10_000)
    """Number of values after a report during which the same number is not reported again. As many spikes in a row are
    a new level."""

    @field_validator("warm_up")
    @classmethod
    def _within_window(cls, warm_up: int, info: ValidationInfo) -> int:
        return not_more_than_window(warm_up, info)


@dataclass
class _Track:
    """Memory of one number."""

    recent: deque[float]
    leaps: deque[float]
    reported: deque[bool]
    """True for each of the leaps that was reported."""
    peak: float = 0.0
    """Highest level, which fades."""
    silent: int = 0
    row: list[float] = field(default_factory=list)
    """Latest values, if they spike: in a row."""
    limit: float | None = None
    """Value below which the reported spike has ended; None if there is none."""
    calm: int = 0


class RunSpike(RunRule):
    """Report values that leap above the median of the ``args.recent`` ones before.

    A leap is a value minus that median; of gradient norms, the logarithms are taken. Three in a row are a spike if they
    are larger than

    - ``args.threshold`` robust standard deviations ``s`` of the leaps of the window, 1.4826 times their median absolute
      deviation (Hampel's identifier; Davies and Gather, "The identification of multiple outliers", 1993),
    - the largest ``t`` of these leaps,
    - the least rise, from ``args.min_ratio`` or ``args.min_ratio_gradients``, and ``args.share``.

    A single one must also be larger than ``s sinh(args.margin asinh(t / s))``: with normal noise about fifteen standard
    deviations, with heavy tails as much more as these are longer. Of logarithms that is ``t + ln(args.margin)``.

    Where more than half of the leaps are equal, such as those of a loss that is 0 in most steps, the limit is half of
    the highest level so far.

    As leaps are counted from the values just before, a trend is no leap: neither a falling loss, nor the slow rise
    after the learning rate has started again. A spike is not among the values that later ones are compared with,
    and its leap is none of the usual ones, until there are three in a window: so a number that leaps again and again is
    reported three times. NaN, Inf and steps whose update was skipped are neither judged nor held.

    After a report, ``args.cool_down`` values are silent; if all of them spike, they are the new level. The end is
    reported after three values below the limit of the spike.
    """

    Args = RunSpikeArgs
    title = "Spike"
    why = "A spike can cost days of training, and one that does not come back ends the run."
    source = "https://doi.org/10.1080/01621459.1993.10476339"
    sees = "loss and gradient norm that the program logs, at every step"
    finds = "finds leaps of the loss and of the gradient norm"
    by_default = True

    def __init__(self, args: RunSpikeArgs) -> None:
        self._args = args
        self._logarithmic = {**dict.fromkeys(args.losses, False), **dict.fromkeys(args.gradients, True)}
        self._tracks = {name: self._track() for name in self._logarithmic}

    def _track(self) -> _Track:
        window = self._args.window
        return _Track(deque(maxlen=self._args.recent), deque(maxlen=window), deque(maxlen=window))

    def judge(self, step: RunStep) -> Iterator[RunFinding]:
        if step.outcome == "skipped":
            return
        for name, logarithmic in self._logarithmic.items():
            value = step.values.get(name, inf)
            if isfinite(value) and (value > 0 or not logarithmic):
                yield from self._judge(name, step.step, log(value) if logarithmic else value)

    def _judge(self, name: str, step: int, x: float) -> Iterator[RunFinding]:
        track, logarithmic = self._tracks[name], self._logarithmic[name]
        if track.limit is not None:
            yield from self._end(name, step, x)
        level = median(track.recent) if track.recent else x
        if len(track.recent) >= min(FIRST, self._args.recent):
            track.peak = max(track.peak * FADING, exp(level) if logarithmic else abs(level))
        if len(track.recent) < self._args.recent:
            track.recent.append(x)
            return
        leap, ready = x - level, len(track.leaps) >= self._args.warm_up
        least = self._least(track, level, logarithmic)
        spike, reported = False, False
        if ready and leap > least:
            unusual, far = (max(least, limit) for limit in self._limits(track, level, logarithmic))
            spike = leap > far or (leap > unusual and (track.silent > 0 or self._continues(track, unusual)))
            if spike and not track.silent:
                track.limit, track.calm, reported = level + unusual, 0, True
                yield self._finding(name, step, x, level)
        track.silent = self._args.cool_down if reported else max(track.silent - 1, 0)
        self._hold(track, x, leap, spike, reported)

    def _least(self, track: _Track, level: float, logarithmic: bool) -> float:
        """Return the least rise from ``level`` that is reported."""
        share = self._args.share * track.peak
        if logarithmic:
            return max(log(self._args.min_ratio_gradients), log(share) - level if share > 0 else 0.0)
        return max((self._args.min_ratio - 1) * abs(level), share)

    def _limits(self, track: _Track, level: float, logarithmic: bool) -> tuple[float, float]:
        """Return the largest leap from ``level`` that is usual, and largest that a single value may have."""
        middle = median(track.leaps)
        sigma = MAD_TO_SIGMA * median(abs(leap - middle) for leap in track.leaps)
        tail = self._tail(track, sigma)
        if sigma <= 1e-12 * max(tail, abs(level)):
            limit = max(self._args.margin * tail, track.peak / 2) if track.peak else inf
            return limit, limit
        usual = max(self._args.threshold * sigma, tail)
        if logarithmic:
            return usual, max(usual, tail + log(self._args.margin))
        return usual, max(usual, sigma * sinh(min(self._args.margin * asinh(tail / sigma), 300.0)))

    def _continues(self, track: _Track, unusual: float) -> bool:
        """Return whether the values just before leapt too; if so, drop their leaps, which are not usual."""
        if any(track.leaps[-n] <= unusual for n in range(1, ROW)):
            return False
        for _ in range(1, ROW):
            track.leaps.pop()
            track.reported.pop()
        return True

    def _tail(self, track: _Track, sigma: float) -> float:
        """Return the largest of the usual leaps; as large as a spike that came again and again.

        Large ones just before are left out: they may be the beginning of the one that is judged.
        """
        end = len(track.leaps)
        first = end - self._args.recent // 2
        while end > max(first, 0) and track.leaps[end - 1] > self._args.threshold * sigma:
            end -= 1
        usual = [leap for leap, reported in islice(zip(track.leaps, track.reported, strict=True), end) if not reported]
        return max(*usual, nlargest(REPEATS, track.leaps)[-1], 0.0)

    def _hold(self, track: _Track, x: float, leap: float, spike: bool, reported: bool) -> None:
        if not spike or reported:
            track.leaps.append(leap)
            track.reported.append(reported)
        if not spike:
            track.recent.append(x)
            track.row.clear()
            return
        track.row.append(x)
        if len(track.row) >= self._args.cool_down:
            track.recent.extend(track.row)
            track.row.clear()

    def _end(self, name: str, step: int, x: float) -> Iterator[RunFinding]:
        """Count values below the limit of the spike that was reported."""
        track = self._tracks[name]
        if track.limit is None or x > track.limit:
            track.calm = 0
            return
        track.calm += 1
        if track.calm >= CALM:
            limit, track.limit = track.limit, None
            yield self._finding(name, step, x, limit, resolved=True)

    def _finding(self, name: str, step: int, x: float, against: float, resolved: bool = False) -> RunFinding:
        value, expected = (exp(x), exp(against)) if self._logarithmic[name] else (x, against)
        text = (
            message(
                "{name} is back at {value:.6g} at step {step}, below the limit {expected:.6g} of its spike",
                name=name,
                value=value,
                step=step,
                expected=expected,
            )
            if resolved
            else message(
                "{name} leapt to {value:.6g} at step {step}; median of the {recent} before: {expected:.6g}",
                name=name,
                value=value,
                step=step,
                recent=self._args.recent,
                expected=expected,
            )
        )
        return RunFinding("RunSpike", name, step, value, expected, text, "warning", resolved)

    def state_dict(self) -> dict[str, Any]:
        return {name: _state_of(track) for name, track in self._tracks.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name in self._tracks:
            with suppress(*UNREADABLE):
                self._tracks[name] = self._restored(state[name])

    def _restored(self, state: Mapping[str, Any]) -> _Track:
        track = self._track()
        track.recent.extend(numbers(state, "recent"))
        track.leaps.extend(numbers(state, "leaps"))
        track.reported.extend(bool(flag) for flag in numbers(state, "reported"))
        if len(track.leaps) != len(track.reported):
            raise ValueError("reported")
        track.row = numbers(state, "row")
        track.peak, track.silent, track.calm = number(state, "peak"), natural(state, "silent"), natural(state, "calm")
        track.limit = None if state["limit"] is None else number(state, "limit")
        return track


def _state_of(track: _Track) -> dict[str, Any]:
    return {
        "recent": list(track.recent),
        "leaps": list(track.leaps),
        "reported": [int(flag) for flag in track.reported],
        "row": list(track.row),
        "peak": track.peak,
        "silent": track.silent,
        "calm": track.calm,
        "limit": track.limit,
    }
