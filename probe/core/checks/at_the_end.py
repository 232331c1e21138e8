"""Checks of what shows at the end of a run, and not before."""

from __future__ import annotations

from collections.abc import Iterator

from probe.core.checks.check import CheckFinding, JudgedUpdate, NotApplicable
from probe.core.checks.loop_check import UnusualCheck
from probe.core.checks.update_facts import UpdateFacts
from probe.core.language import message

UPDATES, FORWARDS, RISES = 20, 20.0, 100
"""Updates after which steps may be expected to go on, forwards without any, and updates in a row in which the rate
rises."""


class UpdatesCease(UnusualCheck):
    """Note that in training mode twenty forwards or more have come after the last update, each with a graph: each loss
    is skipped, as one that is NaN. An evaluation in training mode is seen like this, too."""

    name = "updates-cease"
    title = "Updates have ceased"
    why = "The program runs on and learns nothing, and no error is raised."
    source = "https://github.com/dome272/Wuerstchen/issues/27"
    sees = "the number of operations in graphs at the last update, and at the end of the run"
    remedy = "Count the batches that are skipped, and look at the loss of these: whether their data have changed."
    lacks = NotApplicable("the run was too short")

    def __init__(self) -> None:
        super().__init__()
        self._facts: UpdateFacts | None = None
        self._updates, self._size = 0, 0

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Take an update."""
        self._facts, self._updates = update.facts, self._updates + 1
        self.judged = self._updates >= UPDATES
        yield from ()

    def ended(self, operations: int) -> Iterator[CheckFinding]:
        """Return the findings at the end of the run."""
        facts = self._facts
        size = facts.loss_graph().size if self.judged and facts is not None and facts.loss_graph is not None else 0
        if facts is not None and size and facts.alone and operations >= FORWARDS * size:
            number = operations // size
            text = message("about {number} forwards in training mode have come after the last update", number=number)
            yield self.finding(facts, facts.step + 1, text, {"forwards": number})


class RateRises(UnusualCheck):
    """Note a learning rate that has risen in each of a hundred updates or more, and up to the last: a warm-up was not
    over. A search for the best rate does so, too."""

    name = "warm-up-unfinished"
    title = "Warm-up is not over"
    why = "The model was trained at a part of the rate that was chosen."
    source = "https://github.com/deepmodeling/deepmd-kit/pull/5134"
    sees = "the learning rate at each update"
    remedy = "Give the schedule the number of updates of this run, not of epochs, ranks or micro batches."
    lacks = NotApplicable("the run was too short")

    def __init__(self) -> None:
        super().__init__()
        self._facts: UpdateFacts | None = None
        self._updates, self._rises, self._rate = 0, True, -1.0

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Take an update."""
        self._facts, rates = update.facts, update.facts.rates
        self._updates, self._rises = self._updates + 1, self._rises and bool(rates) and rates[0] > self._rate
        self._rate = rates[0] if rates else self._rate
        self.judged = self._updates >= RISES
        yield from ()

    def ended(self, operations: int) -> Iterator[CheckFinding]:  # noqa: ARG002 - as of the base
        """Return the findings at the end of the run."""
        if self._facts is not None and self.judged and self._rises:
            text = message("the learning rate has risen up to the last update, to {rate:.3g}", rate=self._rate)
            yield self.finding(self._facts, self._facts.step, text, {"rate": self._rate, "updates": self._updates})
