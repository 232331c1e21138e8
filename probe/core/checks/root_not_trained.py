"""Checks of the mode of a model: one that is left in evaluation mode, or evaluated in training mode."""

from __future__ import annotations

from collections.abc import Iterator

from probe.core.checks.check import CheckFinding, JudgedUpdate, NotApplicable
from probe.core.checks.loop_check import ChangeCheck
from probe.core.checks.streak import Streak
from probe.core.checks.update_facts import UpdateFacts
from probe.core.language import message

BEFORE, AFTER = 10, 3
SETTLED, BEYOND = 10, 3
"""Updates in a row with as many forwards each, and forwards beyond these that are an evaluation, at least."""


class RootNotTrained(ChangeCheck):
    """Report that the model was in training mode for ten updates, and is not in three in a row.

    The model itself counts, and larger parts of it that are still trained: a frozen batch normalisation is in
    evaluation mode by design. A model that has never been in training mode is a note: some are fine-tuned so.
    """

    name = "root-not-trained"
    title = "Evaluation mode left on"
    why = "Dropout is off and batch statistics stand still for the rest of the run."
    source = "https://github.com/fartashf/vsepp/issues/4"
    sees = "the training flags of the model and of its larger parts at each backward"
    remedy = "Call model.train() after each evaluation."
    lacks = "no backward was seen"

    def __init__(self) -> None:
        super().__init__()
        self._trained, self._not, self._never = 0, Streak(AFTER), Streak(BEFORE)
        self._parts: dict[str, Streak] = {}
        """Parts that were in training mode for long, and were seen in evaluation mode since."""

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
        if facts.training:
            yield from self._in_parts(facts)

    def _in_parts(self, facts: UpdateFacts) -> Iterator[CheckFinding]:
        """Return the findings about parts of a model in training mode."""
        for part in dict.fromkeys((*facts.resting, *self._parts)):  # in one order on all ranks
            if self._trained <= BEFORE:  # in evaluation mode from the beginning, by design
                self._parts[part] = Streak(0)
            elif self._parts.setdefault(part, Streak(AFTER)).completes(part in facts.resting, facts.step):
                text = message(
                    "{part} is in evaluation mode in {after} updates in a row, though the model is not, and was in "
                    "training mode before: its dropout and batch normalisation do not train",
                    part=part,
                    after=AFTER,
                )
                yield self.finding(facts, self._parts[part].since, text, {"updates": AFTER}, (part,))


class EvaluatedInTraining(ChangeCheck):
    """Report forwards in training mode before an update of the only optimizer, three or more beyond those of ten
    updates in a row and of the next one: an evaluation that was not in evaluation mode.

    They are counted by what batch normalization writes. Weights that are exchanged for an average and put back write
    twice, and samples for a look are one forward.
    """

    name = "evaluated-in-training"
    title = "Evaluation in training mode"
    why = "Samples of the evaluation enter the batch statistics, and its numbers depend on the batch."
    source = "https://github.com/princeton-vl/pytorch_stacked_hourglass/issues/44"
    sees = "how often batch normalization was written between updates; no wait"
    remedy = "Call model.eval() before each evaluation, and model.train() after it."
    lacks = NotApplicable("no batch normalization in training mode on a single rank")

    def __init__(self) -> None:
        super().__init__()
        self._last: int | None = None
        self._usual, self._number = 0, 0
        """Forwards of each of the latest updates, and how many updates had just so many."""
        self._burst: tuple[int, int] | None = None
        """Step of the update before with many more forwards, and their number."""
        self._ended = False

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        if facts.forwards is None or not facts.alone or self._ended:
            self._last = None
            return
        before, self._last = self._last, facts.forwards
        if before is None:
            return
        self.judged = True
        number, before_it = facts.forwards - before, self._burst
        self._burst = None
        if self._number < SETTLED:
            self._number = self._number + 1 if number == self._usual else 1
            self._usual = number
        elif number >= self._usual + BEYOND:
            self._burst = facts.step, number
        elif before_it is not None and number == self._usual:
            self._ended, (since, number) = True, before_it
            text = message(
                "{number} forwards in training mode between two updates, and {usual} in others: an evaluation",
                number=number,
                usual=self._usual,
            )
            yield self.finding(facts, since, text, {"forwards": number, "others": self._usual})
