"""Check for updates that apply gradients which nothing has computed anew."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from probe.core.checks.check import CheckFinding, JudgedUpdate
from probe.core.checks.loop_check import FactCheck
from probe.core.checks.streak import Share
from probe.core.checks.update_facts import Array, Mask, is_any
from probe.core.language import message

UPDATES, LATEST = 2, 4


class UpdateWithoutBackward(FactCheck):
    """Report updates without a new backward, and without gradients that were written in another way.

    Gradients that a program sets itself, as in evolution strategies or PCGrad, are new objects, or have been written.
    Those that it writes past the framework, such as gradients of master copies, have other norms and sums.
    """

    name = "update-without-backward"
    title = "Update without backward"
    why = "A gradient is applied twice, with momentum and decay: the rate is not the one that was set."
    source = "https://github.com/OrderLab/TrainCheck"
    sees = "identities and versions of the gradients, and the number of backwards between updates; no wait"
    remedy = "Call the optimizer's step once after each backward, or after each group of them if you accumulate."
    lacks = "no update with a gradient was applied"

    def __init__(self) -> None:
        super().__init__()
        self._share = Share(UPDATES, LATEST)
        self._last: tuple[Array, Mask] | None = None
        """Norms and sums of the gradients of the last update, and which were there; None if they could not be read."""

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        present, untouched = facts.gradients.there, facts.gradients.untouched
        if facts.outcome != "applied" or not is_any(present):
            return
        self.judged = True
        last, self._last = self._last, None if update.norms is None else (update.gradients, present)
        old = facts.backwards == 0 and bool(untouched[present].all()) and _are_same(self._last, last)
        if self._share.completes(old, facts.step):
            text = message(
                "{updates} of the last {latest} updates applied the gradients of the update before once more: there "
                "was no backward in between",
                updates=UPDATES,
                latest=LATEST,
            )
            yield self.finding(facts, self._share.since, text, {"gradients": int(present.sum())})


def _are_same(first: tuple[Array, Mask] | None, second: tuple[Array, Mask] | None) -> bool:
    """Return whether the gradients of two updates have the same norms and sums, as far as these are known."""
    if first is None or second is None:
        return True
    return np.array_equal(first[0][first[1]], second[0][second[1]], equal_nan=True)
