"""Check for an optimizer that is made anew for every update."""

from __future__ import annotations

from collections.abc import Iterator

from probe.core.checks.check import CheckFinding, JudgedUpdate, NotApplicable
from probe.core.checks.loop_check import ChangeCheck
from probe.core.checks.update_facts import count_of
from probe.core.language import message

BRIEF, MANY = 2, 3
"""Updates of an optimizer that is hardly used, and such optimizers in a row that are reported."""


class OptimizerRemade(ChangeCheck):
    """Report that the program makes a new optimizer for every update or two.

    If most parameters were written, too, the program begins anew by intention, as inner loops of meta-learning do.
    """

    name = "optimizer-remade"
    title = "Optimizer remade each update"
    why = "Momentum and Adam's moments are lost with each optimizer: every update is its first, whatever the settings."
    source = "https://github.com/alan-turing-institute/deepsensor/issues/47"
    sees = "the optimizers that update the same parameters"
    remedy = "Make the optimizer once, before the loop; set param_group['lr'] or use a scheduler to change its rate."
    lacks = NotApplicable("the optimizer keeps nothing from one update to the next")

    def __init__(self) -> None:
        super().__init__()
        self._updates, self._since, self._brief = 0, 0, 0
        """Updates of the run and of its latest optimizer, and optimizers in a row that were hardly used."""

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        self._updates += 1
        self.judged |= facts.remade or self._updates > MANY
        if facts.values is not None and 2 * count_of(facts.values.written) >= count_of(facts.values.known) > 0:
            self._brief = 0
        elif facts.remade:
            self._brief = self._brief + 1 if self._since <= BRIEF else 0
            if self._brief == MANY:
                text = message(
                    "each of the last {count} optimizers made {most} updates at most", count=MANY, most=BRIEF
                )
                yield self.finding(facts, facts.step, text, {"optimizers": MANY})
        self._since = 1 if facts.remade else self._since + 1
