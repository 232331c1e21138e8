"""Check for losses of micro batches that are added and not averaged."""

from __future__ import annotations

from collections.abc import Iterator

from probe.core.checks.check import CheckFinding, Grade, JudgedUpdate, NotApplicable
from probe.core.checks.loop_check import FactCheck
from probe.core.checks.streak import Streak
from probe.core.checks.update_facts import UpdateFacts
from probe.core.language import message

UPDATES = 2
"""Updates whose graphs must show it."""
BATCHES = 4
"""Backwards of an update, at least: fewer may be those of several losses."""


class AddedMeans(FactCheck):
    """Report an update from several micro batches of one size whose mean losses are added and not averaged: the
    gradient is as many times too large.

    The root of a backward must be the mean loss itself, of one kind and size, and nothing may have changed
    the gradients but a clip. Adam and its like without clipping hardly notice it: then it is a note.
    """

    name = "undivided-accumulation"
    title = "Accumulation is not divided"
    why = "The gradient is as many times too large as there are micro batches."
    source = "https://github.com/huggingface/transformers/issues/35438"
    sees = "the number of backwards of each update, and the root of a backward now and then"
    remedy = "Divide each loss by the number of micro batches, or by the number of labels of all of them."
    lacks = NotApplicable(f"fewer than {BATCHES} backwards in each update")

    def __init__(self) -> None:
        super().__init__()
        self._graph: object = None
        self._number = self._backwards = 0
        self._since = -1
        self._kinds = set[tuple[str, int, int]]()

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        fresh = facts.loss_graph is not None and facts.loss_graph is not self._graph
        self._graph = facts.loss_graph
        if facts.loss_graph is None or not fresh or facts.backwards < BATCHES:
            return
        self.judged = True
        graph = facts.loss_graph()
        self._kinds |= {(call.function, call.classes, call.rows) for call in graph.losses}
        alone = facts.alone and graph.factor == 1 and len(self._kinds) == 1 and facts.backwards >= self._backwards
        if not alone or (facts.rewritten and facts.clips is None):
            self._number, self._backwards = UPDATES, facts.backwards  # a program with another habit has it always
            return
        self._since = self._since if self._number else facts.step
        self._number, self._backwards = self._number + 1, facts.backwards
        if self._number == UPDATES:
            yield self._found(facts)

    def _found(self, facts: UpdateFacts) -> CheckFinding:
        text = message(
            "an update adds the mean losses of {number} micro batches, which are not divided by their number",
            number=facts.backwards,
        )
        grade: Grade = "note" if facts.normalises and facts.clip == 1 else "warning"
        return self.finding(facts, self._since, text, {"micro batches": facts.backwards}, grade=grade)


class LossTimesRanks(FactCheck):
    """Report a mean loss that is multiplied, or divided, by the number of ranks, where the wrapper averages gradients
    over these. Losses of which each rank computes a part of the classes, as contrastive ones, are left out, and so are
    updates of several micro batches. Adam and its like without clipping hardly notice it: then it is a note.
    """

    name = "loss-times-ranks"
    title = "Loss times ranks"
    why = "The gradient is as many times too large, or too small, as there are ranks."
    source = "https://github.com/neuralmagic/sparseml/pull/135"
    sees = "the root of a backward now and then, and whether the wrapper averages gradients"
    remedy = "Pass the mean loss of each rank to the backward: the wrapper averages the gradients."
    lacks = NotApplicable("no wrapper that averages gradients")

    def __init__(self) -> None:
        super().__init__()
        self._graph: object = None
        self._streak = Streak(UPDATES)

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        fresh = facts.loss_graph is not None and facts.loss_graph is not self._graph
        self._graph = facts.loss_graph
        if facts.loss_graph is None or not fresh or not facts.reduced or facts.world < 2:
            return
        self.judged = True
        graph, world = facts.loss_graph(), facts.world
        is_part = any(call.classes == world * call.rows for call in graph.losses)
        wrong = graph.factor in (world, 1 / world) and facts.backwards == 1 and not is_part
        if self._streak.completes(wrong and facts.still_scaled is None, facts.step):
            text = message(
                "the mean loss is multiplied by {factor:.3g}, and the wrapper averages over {world} ranks",
                factor=graph.factor,
                world=world,
            )
            grade: Grade = "note" if facts.normalises and facts.clip == 1 else "warning"
            yield self.finding(facts, self._streak.since, text, {"factor": graph.factor, "ranks": world}, grade=grade)
