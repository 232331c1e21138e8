"""Check for a schedule that begins anew where the optimizer goes on."""

from __future__ import annotations

from collections.abc import Iterator

from probe.core.checks.check import CheckFinding, JudgedUpdate, NotApplicable
from probe.core.checks.loop_check import FactCheck
from probe.core.language import message

LOADED = 10
"""Steps of the optimizer's state at its first update, above which the state was loaded."""
UPDATES = 5
"""Updates in which both go on by one step each."""


class ScheduleRestarted(FactCheck):
    """Report a schedule that begins at its first step, and is stepped with each update, where the optimizer's state was
    loaded: it has counted more than ten steps at its first update."""

    name = "schedule-restarted"
    title = "Schedule not resumed"
    why = "The learning rate is that of the beginning, with its warm-up, and its end comes too late."
    source = "https://github.com/PolymathicAI/the_well/pull/63"
    sees = "the steps that the optimizer's state and its schedule count"
    remedy = "Save and load schedule.state_dict() with the optimizer's."
    lacks = NotApplicable("no schedule that is stepped with each update")

    def __init__(self) -> None:
        super().__init__()
        self._number, self._since = 0, -1
        self._ahead = 0
        """Steps by which the state is ahead of the schedule."""
        self._ended = False

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        if self._ended or facts.state_steps is None:
            return
        if self._since < 0:
            self._since, self._ended = facts.step, facts.state_steps <= LOADED
            return
        if facts.scheduled is None:
            return
        self.judged = True
        ahead, self._number = facts.state_steps - facts.scheduled, self._number + 1
        self._ended = (self._number > 1 and ahead != self._ahead) or facts.scheduled > UPDATES
        self._ahead = ahead
        if not self._ended and self._number == UPDATES:
            text = message(
                "the optimizer's state has counted {steps} steps, and the schedule {scheduled}: it was not loaded",
                steps=facts.state_steps,
                scheduled=facts.scheduled,
            )
            yield self.finding(facts, self._since, text, {"steps": facts.state_steps, "scheduled": facts.scheduled})
