"""Contract of a check: a fact that holds in every meaningful training loop, or a change of what held in this run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite, sqrt
from typing import ClassVar, Literal, NamedTuple, Protocol, get_args

import numpy as np

from probe.core.checks.update_facts import Array, UpdateFacts, is_all
from probe.core.hindsight.onset import Onset

Grade = Literal["critical", "warning", "note"]
"""Certainty that training is harmed: a ``note`` is about what legitimate programs do, too."""
GRADES: tuple[Grade, ...] = get_args(Grade)
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
    onset: Onset | None = None
    """Answer of the search for its cause in the steps before; None if none was made."""


class JudgedUpdate:
    """An update whose numbers have arrived on the host, with what several checks derive from these.

    Args:
        facts: what was seen of it.
        gradients: norm and sum of each gradient, see :class:`probe.core.checks.update_facts.Gradients`; empty if they
            could not be read.
    """

    __slots__ = ("facts", "finite", "gradients", "norms", "pattern", "total")

    def __init__(self, facts: UpdateFacts, gradients: Array) -> None:
        self.facts, self.gradients = facts, gradients
        self.norms: Array | None = None
        """Norm of each gradient; None if they could not be read."""
        self.total = 0.0
        """Norm of all gradients together, without those that are NaN."""
        self.finite = True
        """True if each gradient is finite."""
        present = facts.gradients.there
        if gradients.ndim == 2 and len(gradients) == len(facts.names) > 0:
            self.norms = gradients[:, 0]
            self._add_up(self.norms if is_all(present) else self.norms[present])
            present = present & (self.norms != 0)
        self.pattern = present.tobytes()
        """For each parameter whether it has a gradient that is not exactly zero, as far as is known."""

    def _add_up(self, norms: Array) -> None:
        self.total = sqrt(norms.dot(norms))
        if not isfinite(self.total):
            self.finite = bool(np.isfinite(norms).all())
            with np.errstate(over="ignore"):
                self.total = float(np.sqrt(np.nansum(np.square(norms))))


class NotApplicable(str):
    """Reason for which a check is not applicable to a program: the program has nothing that it could judge."""

    __slots__ = ()


class Check(Protocol):
    """Judge of every update of a run, which remembers earlier ones. It never sees a framework."""

    name: ClassVar[str]
    kind: ClassVar[CheckClass]
    title: ClassVar[str]
    """Two to four words."""
    why: ClassVar[str]
    """Harm of the fault: one sentence."""
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
