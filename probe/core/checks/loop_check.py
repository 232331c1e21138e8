"""Defaults that the checks of the training loop share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from probe.core.checks.check import CheckClass, CheckFinding, Grade
from probe.core.checks.places import MOST
from probe.core.checks.update_facts import UpdateFacts


class LoopCheck:
    """Base of the checks: how a finding is made, and what was missing."""

    name: ClassVar[str]
    kind: ClassVar[CheckClass]
    grade: ClassVar[Grade] = "warning"
    title: ClassVar[str]
    why: ClassVar[str]
    source: ClassVar[str]
    sees: ClassVar[str]
    remedy: ClassVar[str]
    lacks: ClassVar[str] = "no update was applied"
    """Reason for which nothing could be judged, until something was."""

    def __init__(self) -> None:
        self.judged = False
        """True if something was judged."""

    def missing(self) -> str | None:
        """Return why nothing could be judged so far; None if something was judged."""
        return None if self.judged else self.lacks

    def ended(self, operations: int) -> Iterable[CheckFinding]:  # noqa: ARG002 - for those that judge the end
        """Return the findings at the end of the run.

        Args:
            operations: those that have entered graphs in training mode after the last update.
        """
        return ()

    def finding(
        self,
        facts: UpdateFacts,
        since: int,
        text: str,
        evidence: Mapping[str, float],
        where: tuple[str, ...] = (),
        grade: Grade | None = None,
    ) -> CheckFinding:
        """Make a finding with this update."""
        return CheckFinding(self.name, grade or self.grade, where[:MOST], facts.step, since, text, evidence)


class FactCheck(LoopCheck):
    """Check of what holds in every meaningful training loop."""

    kind: ClassVar[CheckClass] = "fact"


class ChangeCheck(LoopCheck):
    """Check of what has held for some steps of this run."""

    kind: ClassVar[CheckClass] = "change"


class UnusualCheck(LoopCheck):
    """Check of what legitimate programs do, too: its findings are notes."""

    kind: ClassVar[CheckClass] = "unusual"
    grade: ClassVar[Grade] = "note"
