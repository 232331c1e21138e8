"""Contract of a check: a fact that holds in every meaningful training loop, or a change of what held in this run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar, Literal, NamedTuple, Protocol

from probe.core.checks.update_facts import Array, UpdateFacts

Grade = Literal["critical", "warning", "note"]
"""Certainty that training is harmed: a ``note`` is about what legitimate programs do, too."""
CheckClass = Literal["fact", "change", "unusual"]


class CheckFinding(NamedTuple):
    """Finding of a check. It is found once, until its matter has ended."""

    check: str
    """Name of the check, such as ``stale-gradient``: the kind of the finding."""
    grade: Grade
    where: tuple[str, ...]
    """Parameters or modules that it is about; empty for the whole loop."""
    step: int
    """Step at which it was found."""
    since: int
    """First step at which it was so."""
    text: str
    """One sentence."""
    evidence: Mapping[str, float]
    """Up to three numbers, by name."""
    ranks: tuple[int, ...] = ()
    """Ranks that it is about; empty for the one that judged."""


class JudgedUpdate(NamedTuple):
    """An update whose numbers have arrived on the host."""

    facts: UpdateFacts
    gradients: Array
    """Norm and sum of each gradient, see :class:`probe.core.checks.update_facts.Gradients`; empty if they could not be
    read."""


class NotApplicable(str):
    """Reason for which a program gives a check nothing to judge: it has none of what the check is about."""

    __slots__ = ()


class Check(Protocol):
    """Judge of every update of a run, which remembers earlier ones. It never sees a framework."""

    name: ClassVar[str]
    kind: ClassVar[CheckClass]
    title: ClassVar[str]
    """Two to four words."""
    source: ClassVar[str]
    """Public report of the fault, by link."""
    sees: ClassVar[str]
    """Facts that it judges, and their cost: one clause."""
    remedy: ClassVar[str]
    """Advice: one sentence."""

    def judge(self, update: JudgedUpdate) -> Iterable[CheckFinding]:
        """Return the findings with this update. Called once an update, in their order, always from one thread."""

    def missing(self) -> str | None:
        """Return why nothing could be judged so far, as a clause; None if something was judged. A
        :class:`NotApplicable` if there is nothing to judge in this program, rather than nothing that could be seen."""
