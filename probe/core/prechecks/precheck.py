"""Contract of a precheck: a judge of the first few updates of a program, before it is trained in earnest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from probe.core.checks.check import CheckFinding, Grade, NotApplicable
from probe.core.checks.loss_calls import LossGraph
from probe.core.checks.loss_form import LossForm
from probe.core.checks.places import MOST
from probe.core.prechecks.trial import Trial


class Precheck:
    """Base of the prechecks of one rank.

    A copy of the program has run for a few updates, of which the trial has the facts; models may have been called again
    with inputs that they had got.
    """

    name: ClassVar[str]
    """Kind of its findings."""
    title: ClassVar[str]
    """Two to four words."""
    why: ClassVar[str]
    """Harm of the fault: one sentence."""
    grade: ClassVar[Grade] = "warning"
    """Highest grade of its findings."""
    source: ClassVar[str]
    """Public report of the fault, by link."""
    sees: ClassVar[str]
    """Facts that it judges: one clause."""
    remedy: ClassVar[str]
    """Advice: one sentence."""

    def judge(self, trial: Trial) -> Iterator[CheckFinding]:
        """Yield the findings in a trial."""
        raise NotImplementedError

    def missing(self, trial: Trial) -> str | None:
        """Return why nothing can be judged, as a clause; a :class:`NotApplicable` if the program has nothing of it."""
        raise NotImplementedError

    def finding(
        self,
        text: str,
        evidence: Mapping[str, float],
        where: Sequence[str] = (),
        grade: Grade | None = None,
        step: int = 0,
        between: Sequence[Trial] = (),
    ) -> CheckFinding:
        """Make a finding, of the rank that is judged or ``between`` several."""
        ranks = tuple(trial.rank for trial in between)
        places = tuple(where)[:MOST]
        return CheckFinding(self.name, grade or self.grade, places, step, step, text, dict(evidence), ranks)


class LossPrecheck(Precheck):
    """Base of the prechecks that judge calls of losses as a check of the loop judges the graph of a loss."""

    loop: ClassVar[type[LossForm]]

    def __init_subclass__(cls) -> None:
        """Take over what the check says of its kind."""
        super().__init_subclass__()
        for name in ("name", "title", "why", "source", "remedy"):
            setattr(cls, name, getattr(cls.loop, name))

    def judge(self, trial: Trial) -> Iterator[CheckFinding]:
        fault = self.loop.in_graph(LossGraph(tuple(trial.losses)))
        if fault is not None:
            yield self.finding(fault.text, fault.evidence)

    def missing(self, trial: Trial) -> str | None:
        """Return why nothing can be judged."""
        seen = any(call.rows > 1 and self.loop.concerns(call) for call in trial.losses)
        return None if seen else NotApplicable(self.loop.absent)


class RankPrecheck(Precheck):
    """Base of the prechecks that compare ranks."""

    def judge(self, trial: Trial) -> Iterator[CheckFinding]:  # noqa: ARG002 - see compare
        """Yield nothing: one rank alone has nothing to be compared with."""
        yield from ()

    def compare(self, trials: Sequence[Trial]) -> Iterator[CheckFinding]:
        """Yield the findings between the trials of several ranks."""
        raise NotImplementedError


NO_LOSS = "no loss function of the framework was called on what a model returned"
"""Reason for which losses could not be judged."""
NO_UPDATE = "no update was seen"
NO_CLASSES = NotApplicable("no loss over classes")
