"""Precheck for schedules of learning rates."""

from __future__ import annotations

from collections.abc import Iterator

from probe.core.checks.check import CheckFinding, NotApplicable
from probe.core.checks.schedule_returns import ScheduleReturns
from probe.core.language import message
from probe.core.prechecks.precheck import Precheck
from probe.core.prechecks.trial import Trial


class ScheduleAhead(Precheck):
    """Report a schedule that advances several steps in each update, and was made for the number of updates or is
    stepped with every micro batch.

    Wrappers step a schedule once for each process; one that was made for the steps of all processes is right.
    """

    name, title, why = ScheduleReturns.name, ScheduleReturns.title, ScheduleReturns.why
    source, remedy = ScheduleReturns.source, ScheduleReturns.remedy
    sees = "steps of each schedule between updates, the step at which it ends, and numbers of steps in the program"

    def judge(self, trial: Trial) -> Iterator[CheckFinding]:
        for row in trial.schedules:
            times = min(row.advances, default=0)
            if times < 2:
                continue
            text = ahead(row.kind, times, row.horizon, row.planned)
            evidence = {"steps": times, "horizon": row.horizon}
            micro = not row.by_processes and times == row.backwards and not row.horizon
            yield self.finding(text, evidence, grade="warning" if row.planned or micro else "note")

    def missing(self, trial: Trial) -> str | None:
        if not trial.schedules:
            return NotApplicable("no schedule of the framework")
        return None if any(row.advances for row in trial.schedules) else "fewer than two updates"


def ahead(kind: str, times: int, horizon: int, planned: str) -> str:
    """Return the sentence on a schedule.

    Args:
        planned: name of the number of steps that it ends at; empty if it is not known.
    """
    end = message(
        ": it ends at step {horizon}, as many as {planned}, so after {horizon2} updates",
        horizon=horizon,
        planned=planned,
        horizon2=horizon // times,
    )
    return message(
        "{kind} advances {times} steps in each update{row}", kind=kind, times=times, row=end if planned else ""
    )
