"""Rule about bursts of updates that a gradient scaler skipped."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from pydantic import Field as Argument
from pydantic import ValidationInfo, field_validator

from probe.core.fields import Integer, Section
from probe.core.language import message
from probe.core.records import Severity
from probe.core.rules.about import not_more_than_window
from probe.core.run_state.rules.rule_memory import UNREADABLE, natural, sequence
from probe.core.run_state.rules.run_step import RunFinding, RunRule, RunStep

NAME = "skipped_updates"
"""Number that the findings are about."""


class RunOverflowArgs(Section):
    """Updates skipped by a gradient scaler."""

    window: Integer = Argument(20, ge=2, le=10_000)
    """Number of latest steps that are counted."""
    skipped: Integer = Argument(5, ge=1, le=10_000, validate_default=True)
    """Number of skipped updates among them that is reported. Not more than window."""
    warm_up: Integer = Argument(64, ge=0)
    """Most steps at the beginning of a process in which the scale may fall to a usable one, without a report. The
    warm-up ends as soon as half of window updates in a row were applied."""

    @field_validator("skipped")
    @classmethod
    def _within_window(cls, skipped: int, info: ValidationInfo) -> int:
        return not_more_than_window(skipped, info)


class RunOverflow(RunRule):
    """Report ``args.skipped`` skipped updates among the last ``args.window`` steps, and the end of such a burst.

    A scaler begins with too large a scale and halves it at each skipped update, so the first steps are a warm-up, also
    after a resume, as many programs do not restore their scaler. It ends with some updates in a row, or after
    ``args.warm_up`` steps: if no update was applied until then, that is reported as critical. Later, a scaler tries a
    larger scale now and then, which costs one update each time. The burst has ended when no update of the window was
    skipped. Steps of unknown outcome are not counted.
    """

    Args = RunOverflowArgs
    title = "Skipped updates"
    why = "Updates that are skipped train nothing while the schedule goes on."
    source = "https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling"
    sees = "outcome of each update"
    finds = "finds bursts of updates that a gradient scaler skipped"
    by_default = True

    def __init__(self, args: RunOverflowArgs) -> None:
        self._args = args
        self._skipped = deque[bool](maxlen=args.window)
        self._warm = 0
        """Number of steps of the warm-up so far."""
        self._warm_up_ended = False
        self._open = False

    def judge(self, step: RunStep) -> Iterator[RunFinding]:
        if step.outcome not in ("applied", "skipped"):
            return
        self._skipped.append(step.outcome == "skipped")
        if not self._warm_up_ended:
            self._continue_warm_up()
            return
        count, steps = sum(self._skipped), len(self._skipped)
        text = message(
            "{count} of the last {steps} updates were skipped by the gradient scaler, at step {step}",
            count=count,
            steps=steps,
            step=step.step,
        )
        if not self._open and count >= self._args.skipped:
            self._open = True
            severity: Severity = "critical" if count == steps else "warning"
            yield RunFinding("RunOverflow", NAME, step.step, count, float("nan"), text, severity)
        elif self._open and count == 0:
            self._open = False
            yield RunFinding("RunOverflow", NAME, step.step, count, float("nan"), text, "warning", True)

    def _continue_warm_up(self) -> None:
        self._warm += 1
        enough = max(self._args.window // 2, 1)
        latest = list(self._skipped)[-enough:]
        if len(latest) == enough and not any(latest):
            self._warm_up_ended = True
            self._skipped.extend([False] * self._args.window)
        elif self._warm >= self._args.warm_up:
            self._warm_up_ended = True

    def state_dict(self) -> dict[str, Any]:
        return {"skipped": [int(is_skipped) for is_skipped in self._skipped], "open": self._open}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        with suppress(*UNREADABLE):
            skipped = [bool(natural({"": value}, "")) for value in sequence(state, "skipped")]
            opened = bool(state["open"])
            self._skipped = deque(skipped, maxlen=self._args.window)
            self._warm, self._warm_up_ended, self._open = 0, False, opened
