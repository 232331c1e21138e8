"""Check for an optimizer's state that begins again."""

from __future__ import annotations

from collections.abc import Iterator

from probe.core.checks.check import CheckFinding, JudgedUpdate, NotApplicable
from probe.core.checks.loop_check import ChangeCheck
from probe.core.checks.update_facts import count_of
from probe.core.language import message

BEFORE, AGAIN = 10, 3
RECENT = 2
"""Updates within which parameters and state are written together."""


class StateRestarted(ChangeCheck):
    """Report that the steps which the optimizer's state counts begin again in the run, or in a run that goes on.

    A run goes on if its first step is above 10, or if its parameters have the numbers that an optimizer of the process
    has left in those of another model, after more than ten updates. Of several optimizers, one that begins later has
    its own beginning. If most parameters were written, too, just before, the program has begun anew by intention: after
    a search for the learning rate, for the next fold, or with new factors of low rank.
    """

    name = "state-restarted"
    title = "Optimizer state restarted"
    why = "Moments begin at zero while the rate is high: the loss leaps, or the run loses what it had learnt."
    source = "https://github.com/EvolvingLMMs-Lab/OneVision-Encoder/pull/65"
    sees = "the count of steps in the optimizer's state"
    remedy = (
        "Make the optimizer once, before the loop. In a run that goes on, load optimizer.state_dict() with the model, "
        "after the optimizer has its parameters."
    )
    lacks = NotApplicable("the optimizer's state counts no steps")

    def __init__(self) -> None:
        super().__init__()
        self._updates, self._highest, self._first_seen, self._goes_on = 0, 0, -1, False
        self._written = -RECENT
        """Number of the latest update before which most parameters were written."""

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        self._updates += 1
        if self._updates == 1:
            self._first_seen = facts.step
            self._goes_on = facts.values is not None and facts.values.goes_on
        if facts.values is not None and 2 * count_of(facts.values.written) >= count_of(facts.values.known) > 0:
            self._written = self._updates
        steps = 0 if facts.state_steps is None and self._highest > BEFORE else facts.state_steps
        if steps is None:
            return
        self.judged = True
        resumed = (self._first_seen > BEFORE or self._goes_on) and facts.optimizer == 0 and facts.alone
        if steps < AGAIN and self._highest > BEFORE:
            before, self._highest = self._highest, 0
            if self._updates - self._written < RECENT:
                return
            text = message(
                "the optimizer's state has counted {before} steps and begins again with {steps}",
                before=before,
                steps=steps,
            )
            yield self.finding(facts, facts.step, text, {"before": before, "steps": steps})
        elif self._updates <= AGAIN and steps < self._updates and resumed and self._first_seen >= 0:
            text = message(
                "the run goes on from step {first_seen}, and the optimizer's state begins with {steps} steps",
                first_seen=self._first_seen,
                steps=steps,
            )
            if self._goes_on:
                text = message("training goes on with a model of before, and a new optimizer, without the state")
            yield self.finding(facts, self._first_seen, text, {"first": self._first_seen, "steps": steps})
            self._first_seen = -1
        self._highest = max(self._highest, steps)
