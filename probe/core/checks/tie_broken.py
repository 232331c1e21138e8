"""Check for tied weights that are no longer one."""

from __future__ import annotations

from collections.abc import Iterator

from probe.core.checks.check import CheckFinding, JudgedUpdate, NotApplicable
from probe.core.checks.loop_check import ChangeCheck
from probe.core.checks.places import listing
from probe.core.language import message


class TieBroken(ChangeCheck):
    """Report names that stood for one parameter at an update, and do not at a later one, if of another optimizer."""

    name = "tie-broken"
    title = "Tie broken"
    why = "Two tables that should be one are trained apart, and a checkpoint keeps one of them."
    source = "https://github.com/verl-project/verl/issues/7834"
    sees = "identities of the parameters of the models, by name"
    remedy = "Tie the weights again after whatever replaces parameters: moving, resizing, loading, wrapping."
    lacks = NotApplicable("no parameter has two names")

    def __init__(self) -> None:
        super().__init__()
        self._ties: tuple[tuple[str, ...], ...] | None = None

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        if facts.ties is self._ties:
            return
        before = facts.earlier_ties if self._ties is None else self._ties
        self.judged |= bool(facts.ties)
        groups = [frozenset(tie) for tie in facts.ties]
        broken = [tie for tie in before if not any(group.issuperset(tie) for group in groups)]
        self._ties = facts.ties
        for tie in broken:
            text = message(
                "{places} were one parameter and are so no longer: each is trained by its own gradient",
                places=listing(tie),
            )
            yield self.finding(facts, facts.step, text, {"names": len(tie)}, tie)
