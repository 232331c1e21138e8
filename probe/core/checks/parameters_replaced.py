"""Check for parameters that were replaced after the optimizer was made."""

from __future__ import annotations

from collections.abc import Iterator

from probe.core.checks.check import CheckFinding, Grade, JudgedUpdate
from probe.core.checks.loop_check import FactCheck
from probe.core.checks.places import ancestors, listing
from probe.core.checks.streak import Streak
from probe.core.language import message

UPDATES = 3


class ParametersReplaced(FactCheck):
    """Report parameters that the optimizer holds, and in whose place the model has others.

    It is critical if parameters of the model have a gradient and are in no optimizer, or if nothing that the optimizer
    holds has one. Otherwise what is in their place is in an optimizer, or frozen: a head that a program has exchanged
    leaves such parameters behind, which is a note.

    Parameters that were replaced before the first update were never seen in the model. They are found by their number:
    in the first three updates, as many parameters of the optimizer are in no model and have no gradient, as parameters
    of the models have one and are in no optimizer.
    """

    name = "parameters-replaced"
    grade = "critical"
    title = "Parameters replaced"
    why = "The optimizer updates tensors that the model no longer uses."
    source = "https://github.com/meta-pytorch/opacus/issues/432"
    sees = "identities of the parameters of model and optimizer"
    remedy = "Make the optimizer after the model is moved, resized, wrapped or loaded with assign=True."

    def __init__(self) -> None:
        super().__init__()
        self._names: tuple[str, ...] = ()
        self._harmless, self._before = Streak(UPDATES), Streak(UPDATES)
        self._updates = 0

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        self.judged = True
        if self._updates < UPDATES:
            yield from self._replaced_before(update)
        harmful = bool(facts.replaced) and (bool(facts.strangers) or not facts.gradients.there.any())
        harmless = self._harmless.completes(bool(facts.replaced) and not harmful, facts.step)
        if not harmful:
            self._names = ()
        if not harmless and (not harmful or self._names == facts.replaced):
            return
        self._names = facts.replaced if harmful else ()
        where = ancestors(facts.replaced, (*facts.names, *facts.replaced))
        state = message("are trained by no optimizer" if harmful else "have no gradient here, or are in an optimizer")
        text = message(
            "{number} parameters of the optimizer are no longer those of the model: others, which {state}, have "
            "taken their place in {places}",
            number=len(facts.replaced),
            state=state,
            places=listing(where),
        )
        grade: Grade = "critical" if harmful else "note"
        since = facts.step if harmful else self._harmless.since
        yield self.finding(
            facts, since, text, {"replaced": len(facts.replaced), "parameters": len(facts.names)}, where, grade
        )

    def _replaced_before(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Yield the finding about parameters that were replaced before the first update."""
        facts = update.facts
        if facts.outcome == "skipped":
            return
        self._updates += 1
        rows = zip(facts.names, facts.gradients.there, strict=True)
        strange = [bool(has) for name, has in rows if not name]
        alike = bool(strange) and not any(strange) and len(strange) == len(facts.strangers)
        if self._before.completes(alike and not facts.replaced, facts.step):
            where = ancestors(facts.strangers, (*facts.names, *facts.strangers))
            text = message(
                "{number} parameters of the optimizer are in no model and have no gradient, and as many of the "
                "model have one and are in no optimizer: {places} was replaced after the optimizer was made",
                number=len(strange),
                places=listing(where),
            )
            evidence = {"replaced": len(strange), "parameters": len(facts.names)}
            yield self.finding(facts, self._before.since, text, evidence, where)
