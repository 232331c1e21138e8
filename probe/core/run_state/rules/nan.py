"""Rule about numbers of the run that were finite and are no longer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from math import isfinite
from typing import Any

from pydantic import Field as Argument

from probe.core.fields import Integer, Section, Text
from probe.core.language import message
from probe.core.naming import CLOCKS, GRAD_NORM, LOSS, PHASE, RANK, SENTINEL
from probe.core.records import Severity
from probe.core.run_state.rules.rule_memory import LONGEST, UNREADABLE, natural, sequence
from probe.core.run_state.rules.run_step import RunFinding, RunRule, RunStep

DERIVED = (*CLOCKS, PHASE, RANK, *SENTINEL)
"""Beginnings of the names of measured times, which the first step of a process lacks, and of what the sentinel's own
checks judge."""


class RunNanArgs(Section):
    """NaN and infinity."""

    names: tuple[Text, ...] = (LOSS, GRAD_NORM)
    """Numbers that are reported whenever they are NaN or infinite, as critical. Any other number is reported, as a
    warning, if it has been finite before."""
    calm: Integer = Argument(3, ge=1, le=10_000)
    """Number of finite values in a row after which the matter has ended."""


class RunNan(RunRule):
    """Report NaN and Inf: of ``args.names`` from the first step on, of any other number once it has been finite.

    A number is reported once until it has been finite ``args.calm`` times in a row, which is reported as its end. Steps
    whose update a gradient scaler skipped are left out: their gradients are not finite by design. Times that probe
    measures are left out too, as the first step of a process has none.
    """

    Args = RunNanArgs
    title = "Not a finite number"
    why = "Training goes on with weights that are NaN until somebody looks."
    source = "https://github.com/facebookresearch/metaseq/tree/main/projects/OPT/chronicles"
    sees = "numbers that the program logs, at every step"
    finds = "finds NaN and infinity"
    by_default = True

    def __init__(self, args: RunNanArgs) -> None:
        self._args = args
        self._finite: dict[str, int] = {}
        """Number of finite values in a row of each number that has been finite; at most ``calm``."""
        self._open: dict[str, None] = {}

    def judge(self, step: RunStep) -> Iterator[RunFinding]:
        if step.outcome == "skipped":
            return
        for name, value in step.values.items():
            if name.startswith(DERIVED):
                continue
            if isfinite(value):
                yield from self._healthy(name, value, step.step)
            elif name in self._args.names or name in self._finite:
                yield from self._broken(name, value, step.step)

    def _healthy(self, name: str, value: float, step: int) -> Iterator[RunFinding]:
        if name not in self._finite and len(self._finite) >= LONGEST:
            return
        self._finite[name] = min(self._finite.get(name, 0) + 1, self._args.calm)
        if name in self._open and self._finite[name] == self._args.calm:
            del self._open[name]
            yield self._finding(
                name,
                value,
                step,
                message("{name} is finite again: {value:.6g} at step {step}", name=name, value=value, step=step),
                True,
            )

    def _broken(self, name: str, value: float, step: int) -> Iterator[RunFinding]:
        if name in self._finite:
            self._finite[name] = 0
        if name not in self._open:
            self._open[name] = None
            yield self._finding(
                name, value, step, message("{name} is {value} at step {step}", name=name, value=value, step=step)
            )

    def _finding(self, name: str, value: float, step: int, message: str, resolved: bool = False) -> RunFinding:
        severity: Severity = "critical" if name in self._args.names else "warning"
        return RunFinding("RunNan", name, step, value, float("nan"), message, severity, resolved)

    def state_dict(self) -> dict[str, Any]:
        return {"finite": dict(self._finite), "open": list(self._open)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        with suppress(*UNREADABLE):
            finite = {str(name): min(natural(state["finite"], name), self._args.calm) for name in state["finite"]}
            opened = {str(name): None for name in sequence(state, "open")}
            self._finite, self._open = finite, opened
