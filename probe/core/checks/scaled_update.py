"""Check for updates that apply gradients with the factor of a loss scaler."""

from __future__ import annotations

from collections.abc import Iterator

from probe.core.checks.check import CheckFinding, JudgedUpdate, NotApplicable
from probe.core.checks.loop_check import FactCheck
from probe.core.checks.streak import Streak
from probe.core.language import message

UPDATES = 3


class ScaledUpdate(FactCheck):
    """Report that an optimizer is stepped past the loss scaler, and nothing has unscaled its gradients, in three
    updates in a row.

    Gradients that something has written between the backward and the update may have been divided by the program.
    """

    name = "scaled-update"
    title = "Scaled gradients are applied"
    why = "Each gradient is thousands of times too large, and one that is not finite is applied, too."
    source = "https://github.com/IAHispano/Applio/pull/860"
    sees = "whether a scaler has multiplied the loss, and has unscaled the gradients at the update"
    remedy = "Call scaler.step(optimizer) and scaler.update() in place of optimizer.step()."
    lacks = NotApplicable("no loss scaler")

    def __init__(self) -> None:
        super().__init__()
        self._streak = Streak(UPDATES)

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        self.judged |= facts.still_scaled is not None
        if self._streak.completes(bool(facts.still_scaled) and facts.alone and not facts.rewritten, facts.step):
            text = message(
                "in {updates} updates in a row the optimizer was stepped past the scaler, and gradients were applied "
                "with its factor",
                updates=UPDATES,
            )
            yield self.finding(facts, self._streak.since, text, {"updates": UPDATES})
