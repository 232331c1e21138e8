"""Check for updates that apply gradients which are not finite."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from probe.core.checks.beginning import UsedParameter, frontier
from probe.core.checks.check import CheckFinding, JudgedUpdate
from probe.core.checks.loop_check import FactCheck
from probe.core.checks.places import listing
from probe.core.language import joined, message

MOST = 5


class GradientNotFinite(FactCheck):
    """Report an applied update with gradients that hold NaN or Inf: the weights are spoilt by it.

    What a gradient scaler skips is no finding. Such gradients without a scaler that the program has dropped are a
    warning.
    """

    name = "gradient-not-finite"
    grade = "critical"
    title = "Gradient not finite"
    why = "One such update makes all weights of the run NaN; only an earlier checkpoint is sound."
    source = "https://github.com/facebookresearch/metaseq/tree/main/projects/OPT/chronicles"
    sees = "norms of the gradients at each update, before clipping"
    remedy = "Go back to a checkpoint of before this step; find the first module whose output is not finite."
    lacks = "no norm of a gradient could be read at an update that was applied"

    def __init__(self) -> None:
        super().__init__()
        self._since: int | None = None
        self._dropped = False

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts, norms = update.facts, update.norms
        if facts.outcome != "applied" or norms is None:
            return
        self.judged = True
        if facts.dropped and not self._dropped:
            number = len(facts.dropped)
            text = message(
                "{number} gradients were not finite, and the program has dropped them: {places}",
                number=number,
                places=listing(facts.dropped),
            )
            yield self.finding(facts, facts.step, text, {"not_finite": number}, facts.dropped, "warning")
        self._dropped = bool(facts.dropped)
        if update.finite:
            self._since = None
            return
        if self._since is not None:
            return
        self._since = facts.step
        bad = facts.gradients.there & ~np.isfinite(norms)
        number, total = int(bad.sum()), int(facts.gradients.there.sum())
        where = tuple(facts.names[position] for position in np.flatnonzero(bad)[:MOST])
        text = message(
            "{number} of {total} gradients that this update applied are not finite: {places}{more}",
            number=number,
            total=total,
            places=", ".join(where),
            more=message(" and more") if number > MOST else "",
        )
        if (beginning := facts.beginning) is not None:
            where, text = beginning.where(), joined("; ", [text, beginning.clause()])
        elif number < total and (edge := frontier(_used(update))) is not None:
            by = [] if _ordered(update) else [message("by the order in which the model names them")]
            where, text = edge.where(), joined("; ", [text, joined(", ", [edge.clause(), *by])])
        yield self.finding(facts, facts.step, text, {"gradients": total, "not_finite": number}, where)


def _ordered(update: JudgedUpdate) -> bool:
    """Return whether it is known where the forward uses each parameter with a gradient."""
    facts = update.facts
    return bool(facts.uses) and all(facts.names[place] in facts.uses for place in np.flatnonzero(facts.gradients.there))


def _used(update: JudgedUpdate) -> Iterator[UsedParameter]:
    """Yield the parameters with gradients, in the order of their use or, if that is not known of each, that of their
    names in the model: the last are used last."""
    facts, norms, ordered = update.facts, update.gradients[:, 0], _ordered(update)
    for position in np.flatnonzero(facts.gradients.there):
        name = facts.names[position]
        order = facts.uses[name].order if ordered else int(position)
        yield UsedParameter(name, order, bool(np.isfinite(norms[position])))
