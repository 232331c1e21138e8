"""Rule about ranks that take longer than others for the same work."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Hashable, Iterator, Mapping
from contextlib import suppress
from math import isfinite
from typing import Any, NamedTuple

from pydantic import Field as Argument
from pydantic import ValidationInfo, field_validator

from probe.core.fields import Integer, Number, Section, Text, Threshold
from probe.core.language import message
from probe.core.naming import OUTSIDE_SECONDS, PHASE, RANK, STEP_SECONDS
from probe.core.rules.about import not_more_than_window
from probe.core.run_state.rules.rule_memory import LONGEST, UNREADABLE, median, numbers, sequence
from probe.core.run_state.rules.run_step import RunFinding, RunRule, RunStep

FACTOR, SHARE = 1.5, 0.05


class Straggler(NamedTuple):
    """Rank that takes longer than the others."""

    rank: int
    seconds: float
    expected: float
    """Median of the others."""


def stragglers(
    medians: Mapping[int, float],
    factor: float = FACTOR,
    least: float = 0.0,
    groups: Mapping[int, Hashable] | None = None,
) -> list[Straggler]:
    """Return the ranks that take at least ``factor`` times as long as the median of the others, the slowest first.

    All ranks of a synchronous step end together, as the fast ones wait in a collective; so the time outside of
    collectives is compared.

    Args:
        medians: typical seconds of each rank outside of collectives, or in one phase; NaN is left out.
        factor: ratio to the median of the others.
        least: least difference in seconds.
        groups: group of each rank, such as its pipeline stage, if not all have the same work; a rank is compared with
            those of its group alone.
    """
    members: dict[Hashable, dict[int, float]] = {}
    for rank, seconds in medians.items():
        if isfinite(seconds):
            members.setdefault(None if groups is None else groups.get(rank), {})[rank] = seconds
    slow_ranks = [straggler for group in members.values() for straggler in _compared(group, factor, least)]
    return sorted(slow_ranks, key=lambda straggler: straggler.expected - straggler.seconds)


def _compared(medians: Mapping[int, float], factor: float, least: float) -> Iterator[Straggler]:
    ordered = sorted(medians.values())
    if len(ordered) < 2:
        return
    for rank, seconds in medians.items():
        expected = _median_without(ordered, seconds)
        if seconds > factor * expected and seconds - expected > least:
            yield Straggler(rank, seconds, expected)


def _median_without(ordered: list[float], number: float) -> float:
    """Return the median of ascending numbers but for ``number`` of them."""
    gap, rest = bisect_left(ordered, number), len(ordered) - 1
    low, high = (ordered[n + (n >= gap)] for n in ((rest - 1) // 2, rest // 2))
    return (low + high) / 2


class RunStragglerArgs(Section):
    """Time of each rank against the others."""

    numbers: tuple[Text, ...] = (OUTSIDE_SECONDS, f"{PHASE}data_seconds")
    """Numbers that are compared: `outside_seconds`, the time outside of collectives, which is known where
    `cc_distribution` is enabled, and phases such as `phase/data_seconds`."""
    factor: Number = Argument(FACTOR, gt=1)
    """Factor by which a rank must take longer than the median of the others."""
    share: Threshold = SHARE
    """Least difference, as a share of the step's time."""
    window: Integer = Argument(40, ge=2, le=10_000)
    """Number of latest steps whose median counts for each rank."""
    warm_up: Integer = Argument(40, ge=1, le=10_000, validate_default=True)
    """Number of steps of a rank before it is judged. Not more than window."""

    @field_validator("warm_up")
    @classmethod
    def _within_window(cls, warm_up: int, info: ValidationInfo) -> int:
        return not_more_than_window(warm_up, info)


class RunStraggler(RunRule):
    """Report ranks whose numbers ``rank/<n>/<number>`` are ``args.factor`` above the median of the other ranks.

    A rank knows its own times only, so these numbers are in a step if somebody has gathered them: while training runs,
    the heartbeat server. Each rank's median of the last
    ``args.window`` steps is compared. A rank is reported once until it is half of the way back to the others, which is
    reported too.
    """

    Args = RunStragglerArgs
    title = "Straggler"
    why = "All ranks wait for the slowest one at each step."
    source = "https://arxiv.org/abs/2402.15627"
    sees = "times of all ranks, where the heartbeat server has gathered them"
    finds = "finds ranks that take longer than the others for the same work"
    by_default = True

    def __init__(self, args: RunStragglerArgs) -> None:
        self._args = args
        self._seconds = deque[float](maxlen=args.window)
        self._ranks: dict[str, dict[int, deque[float]]] = {name: {} for name in args.numbers}
        self._open: dict[tuple[str, int], None] = {}

    def judge(self, step: RunStep) -> Iterator[RunFinding]:
        seconds = step.values.get(STEP_SECONDS, step.seconds)
        if isfinite(seconds):
            self._seconds.append(seconds)
        for number in self._read(step.values):
            enough = {
                rank: median(numbers_of_rank)
                for rank, numbers_of_rank in self._ranks[number].items()
                if len(numbers_of_rank) >= self._args.warm_up
            }
            yield from self._compare(number, enough, step.step)

    def _read(self, values: Mapping[str, float]) -> list[str]:
        """Remember the numbers of ranks; return those that are there in this step."""
        present: dict[str, None] = {}
        for name, value in values.items():
            if not name.startswith(RANK) or not isfinite(value):
                continue
            rank, _, number = name.removeprefix(RANK).partition("/")
            if rank.isdecimal() and number in self._ranks:
                ranks = self._ranks[number]
                if int(rank) in ranks or len(ranks) < LONGEST:
                    ranks.setdefault(int(rank), deque(maxlen=self._args.window)).append(value)
                    present[number] = None
        return list(present)

    def _compare(self, number: str, medians: Mapping[int, float], step: int) -> Iterator[RunFinding]:
        least = self._args.share * median(self._seconds) if self._seconds else 0.0
        for rank, seconds, expected in stragglers(medians, self._args.factor, least):
            if (number, rank) not in self._open:
                self._open[number, rank] = None
                yield self._finding(number, rank, step, seconds, expected)
        slow = {straggler.rank for straggler in stragglers(medians, (1 + self._args.factor) / 2, least / 2)}
        for rank in [rank for name, rank in self._open if name == number and rank in medians and rank not in slow]:
            del self._open[number, rank]
            others = [seconds for peer, seconds in medians.items() if peer != rank]
            expected = median(others) if others else float("nan")
            yield self._finding(number, rank, step, medians[rank], expected, resolved=True)

    def _finding(
        self, number: str, rank: int, step: int, seconds: float, expected: float, resolved: bool = False
    ) -> RunFinding:
        text = message(
            "rank {rank} is back at {seconds:.4g} s ({number}, median of the last {window} steps) at step {step}; "
            "the other ranks take {expected:.4g} s"
            if resolved
            else "rank {rank} takes {seconds:.4g} s ({number}, median of the last {window} steps) at step {step}; "
            "the other ranks take {expected:.4g} s",
            rank=rank,
            seconds=seconds,
            number=number,
            window=self._args.window,
            step=step,
            expected=expected,
        )
        name = f"{RANK}{rank}/{number}"
        return RunFinding("RunStraggler", name, step, seconds, expected, text, "warning", resolved)

    def state_dict(self) -> dict[str, Any]:
        return {
            "seconds": list(self._seconds),
            "ranks": {
                number: {str(rank): list(ring) for rank, ring in ranks.items()} for number, ranks in self._ranks.items()
            },
            "open": [[number, rank] for number, rank in self._open],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        with suppress(*UNREADABLE):
            window = self._args.window
            ranks = {
                number: {
                    int(rank): deque(numbers(memory, rank), maxlen=window)
                    for memory in [state["ranks"].get(number, {})]
                    for rank in memory
                }
                for number in self._args.numbers
            }
            opened = {(str(number), int(rank)): None for number, rank in sequence(state, "open") if number in ranks}
            self._seconds, self._ranks, self._open = deque(numbers(state, "seconds"), window), ranks, opened
