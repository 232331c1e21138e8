"""Rule about numbers of the run beyond limits that the user has set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from math import inf, isfinite
from typing import Any, Protocol

from probe.core.language import message
from probe.core.naming import RUN, VALUE
from probe.core.rules.threshold import OF_RUN, AnomalyThreshold, ThresholdArgs
from probe.core.run_state.rules.rule_memory import LONGEST, UNREADABLE, natural
from probe.core.run_state.rules.run_step import RunFinding, RunRule, RunStep

NAME = AnomalyThreshold.__name__
"""Name of the rule in the configuration, under which findings are reported: it is the same one for rows."""
CALM = 3
"""Number of values within the limits in a row after which the matter has ended."""


class ConfiguredRule(Protocol):
    """Alert rule of a configuration."""

    @property
    def rule_name(self) -> str:
        """Its name."""

    @property
    def args(self) -> Any:
        """Its arguments."""


def limits_of(rules: Iterable[ConfiguredRule]) -> tuple[ThresholdArgs, ...]:
    """Return the arguments of the alert rules that set limits for numbers of the run."""
    limits = (rule.args for rule in rules if rule.rule_name == NAME)
    return tuple(args for args in limits if _names_numbers(args))


def _names_numbers(args: ThresholdArgs) -> bool:
    return not {*OF_RUN}.isdisjoint(args.ops) and (not args.signals or RUN in args.signals)


class RunThreshold(RunRule):
    """Report numbers of the run above ``args.above`` or below ``args.below``, once until they have been within the
    limits three times in a row, which is reported as the end.

    It is the part of ``AnomalyThreshold`` for numbers of the run: those that ``args.ops`` name; all, if it names
    ``value``. ``args.names`` chooses among them. NaN is left to ``RunNan``, and so is what is infinite in a step whose
    update a gradient scaler skipped.
    """

    Args = ThresholdArgs
    title = AnomalyThreshold.title
    why, source = AnomalyThreshold.why, AnomalyThreshold.source
    sees = "numbers of the run that you name, at every step"
    finds = AnomalyThreshold.finds
    by_default = False

    def __init__(self, args: ThresholdArgs) -> None:
        self._above = inf if args.above is None else args.above
        self._below = -inf if args.below is None else args.below
        self._numbers = frozenset(args.ops)
        self._patterns: tuple[str, ...] = tuple(args.names) or ("*",)
        self._named: dict[str, bool] = {}
        self._open: dict[str, int] = {}
        """Number of values within the limits in a row, of each number that was reported."""

    def judge(self, step: RunStep) -> Iterator[RunFinding]:
        for name, value in step.values.items():
            if not self._is_named(name) or (step.outcome == "skipped" and not isfinite(value)):
                continue
            if value > self._above or value < self._below:
                yield from self._beyond(name, value, step.step)
            elif name in self._open and value == value:  # noqa: PLR0124 - NaN is no value within the limits
                yield from self._within(name, value, step.step)

    def _is_named(self, name: str) -> bool:
        if name not in self._named:
            if len(self._named) >= LONGEST:
                return False
            is_numbered = VALUE in self._numbers or name in self._numbers
            self._named[name] = is_numbered and any(fnmatchcase(name, pattern) for pattern in self._patterns)
        return self._named[name]

    def _beyond(self, name: str, value: float, step: int) -> Iterator[RunFinding]:
        if name not in self._open:
            above = value > self._above
            side = message("above" if above else "below")
            values = {"name": name, "value": value, "step": step, "limit": self._above if above else self._below}
            text = message("{name} is {value:.6g} at step {step}, {side} the limit {limit:.6g}", side=side, **values)
            yield RunFinding(NAME, name, step, value, self._above if above else self._below, text, "warning")
        self._open[name] = 0

    def _within(self, name: str, value: float, step: int) -> Iterator[RunFinding]:
        self._open[name] += 1
        if self._open[name] >= CALM:
            del self._open[name]
            text = message(
                "{name} is {value:.6g} at step {step}, within its limits again", name=name, value=value, step=step
            )
            yield RunFinding(NAME, name, step, value, float("nan"), text, "warning", True)

    def state_dict(self) -> dict[str, Any]:
        return {"open": dict(self._open)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        with suppress(*UNREADABLE):
            self._open = {str(name): natural(state["open"], name) for name in state["open"]}
