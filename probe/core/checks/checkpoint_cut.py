"""Check for checkpointed activations that no backward reaches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from probe.core.checks.check import CheckFinding, JudgedUpdate
from probe.core.checks.loop_check import FactCheck
from probe.core.checks.places import ancestors
from probe.core.checks.streak import Streak
from probe.core.checks.update_facts import is_any
from probe.core.language import message

UPDATES = 3
"""Updates in a row."""


class CheckpointCut(FactCheck):
    """Report reentrant checkpointing of which no input requires a gradient, as behind frozen embeddings: the parameters
    in between get no gradient."""

    name = "checkpoint-cut"
    title = "Checkpoint cuts the graph"
    why = "Most of the model is not trained, and the loss falls a little all the same."
    source = "https://github.com/huggingface/transformers/issues/21381"
    sees = "the inputs of reentrant checkpoints in training, and which gradients there are"
    remedy = "Use checkpoint(..., use_reentrant=False), or call model.enable_input_require_grads()."
    lacks = "no update was seen"

    def __init__(self) -> None:
        super().__init__()
        self._streak = Streak(UPDATES)

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        self.judged = True
        without = facts.trainable & ~facts.gradients.there if facts.cut else None
        if self._streak.completes(without is not None and is_any(without), facts.step) and without is not None:
            number, total = int(without.sum()), int(facts.trainable.sum())
            where = ancestors((facts.names[place] for place in np.flatnonzero(without)), facts.names)
            text = message(
                "{number} of {total} parameters get no gradient: activations are checkpointed reentrantly, and no "
                "input of the checkpoint requires a gradient, so that the backward does not reach what lies behind "
                "it",
                number=number,
                total=total,
            )
            yield self.finding(facts, self._streak.since, text, {"parameters": number, "all": total}, where)
