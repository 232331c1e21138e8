"""Check for a model that is left in evaluation mode."""

from __future__ import annotations

from collections.abc import Iterator

from probe.core.checks.check import CheckFinding, JudgedUpdate
from probe.core.checks.loop_check import ChangeCheck
from probe.core.checks.streak import Streak
from probe.core.language import message

BEFORE, AFTER = 10, 3


class RootNotTrained(ChangeCheck):
    """Report that the model was in training mode for ten updates, and is not in three in a row.

    Only the model itself counts: parts such as a frozen batch normalisation are in evaluation mode by design. A model
    that has never been in training mode is a note: some are fine-tuned so.
    """

    name = "root-not-trained"
    title = "Evaluation mode left on"
    why = "Dropout is off and batch statistics stand still for the rest of the run."
    source = "https://github.com/fartashf/vsepp/issues/4"
    sees = "the model's own training flag at each backward"
    remedy = "Call model.train() after each evaluation."
    lacks = "no backward was seen"

    def __init__(self) -> None:
        super().__init__()
        self._trained, self._not, self._never = 0, Streak(AFTER), Streak(BEFORE)

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        if facts.training is None:
            return
        self.judged = True
        self._trained += facts.training
        stopped = self._not.completes(not facts.training and self._trained >= BEFORE, facts.step)
        never = self._never.completes(not facts.training and not self._trained, facts.step)
        if stopped:
            text = message(
                "the model is in evaluation mode in {after} updates in a row, and was in training mode in {trained} "
                "updates before: dropout and batch normalisation do not train",
                after=AFTER,
                trained=self._trained,
            )
            yield self.finding(facts, self._not.since, text, {"updates": self._trained})
        if never:
            text = message("the model was in evaluation mode in all of the first {before} updates", before=BEFORE)
            yield self.finding(facts, self._never.since, text, {"updates": BEFORE}, (), "note")
