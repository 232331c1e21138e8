"""Check for modules whose gradient has become exactly zero."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from probe.core.checks.check import CheckFinding, JudgedUpdate
from probe.core.checks.loop_check import ChangeCheck, norms_of
from probe.core.checks.places import ancestors, listing, module_of

SOON, ALWAYS = 8, 20
"""Updates in a row without a gradient, of a module that had one in as many updates in a row before."""
LATE, SOMETIMES = 20, 3
"""The same of other modules, and of experts, which a router may leave out for a while."""
EXPERT = re.compile(r"expert", re.IGNORECASE)


class GradientGone(ChangeCheck):
    """Report modules with gradients that are all exactly zero for some updates in a row, and were not before.

    A parameter without a gradient (None) is not part of the graph, such as the head of another task, and does not
    count. Nor do updates in which all gradients of the optimizer are zero, unless the loss is known not to be: a hinge
    loss may be satisfied.
    """

    name = "gradient-gone"
    title = "Gradient has vanished"
    source = "https://doi.org/10.1109/ICSE43902.2021.00043"
    sees = "norms of the gradients at each update, by module"
    remedy = (
        "Look at the update just before: a rate or a batch that was too large has driven activations to where their "
        "slope is zero. Go back to a checkpoint of before, with a lower rate or with clipping."
    )
    lacks = "no norm of a gradient could be read"

    def __init__(self) -> None:
        super().__init__()
        self._names: tuple[str, ...] | None = None

    def _begin(self, names: tuple[str, ...]) -> None:
        """Forget all modules: there are others now."""
        self._names = names
        modules = [module_of(name) for name in names]
        self._modules = list(dict.fromkeys(modules))
        places = {module: place for place, module in enumerate(self._modules)}
        self._module = np.array([places[module] for module in modules], dtype=np.int64)
        number = len(self._modules)
        self._zeros, self._lived = np.zeros(number, dtype=np.int64), np.zeros(number, dtype=np.int64)
        self._since = np.full(number, -1, dtype=np.int64)
        self._expert = np.array([EXPERT.search(module) is not None for module in self._modules], dtype=np.bool_)

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts, norms = update.facts, norms_of(update)
        if facts.outcome == "skipped" or norms is None:
            return
        if facts.names is not self._names and facts.names != self._names:
            self._begin(facts.names)
        there = facts.gradients.there & facts.trainable
        alive = self._any(there & (norms != 0))
        gone = self._any(there) & ~alive
        if not there.any() or (not alive.any() and not facts.loss):
            return
        if not alive.any() and not facts.loss_seen:
            return
        self.judged = True
        self._since[gone & (self._zeros == 0)] = facts.step
        self._lived = np.where(alive, np.where(self._zeros > 0, 1, self._lived + 1), self._lived)
        self._zeros = np.where(gone, self._zeros + 1, np.where(alive, 0, self._zeros))
        if gone.any():
            yield from self._report(update, gone, there)

    def _any(self, mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return for each module whether the mask holds for any of its parameters."""
        return np.bincount(self._module[mask], minlength=len(self._modules)) > 0

    def _report(
        self, update: JudgedUpdate, gone: npt.NDArray[np.bool_], there: npt.NDArray[np.bool_]
    ) -> Iterator[CheckFinding]:
        regular = (self._lived >= ALWAYS) & ~self._expert
        soon = gone & regular & (self._zeros == SOON)
        late = gone & ~regular & (self._lived >= SOMETIMES) & (self._zeros == LATE)
        ended = soon | late
        if not ended.any():
            return
        facts = update.facts
        rows = zip(facts.names, self._module, there, strict=True)
        names = [(name, bool(ended[module])) for name, module, has in rows if has]
        where = ancestors([name for name, is_gone in names if is_gone], [name for name, _ in names])
        updates, since = int(self._zeros[ended].min()), int(self._since[ended].min())
        text = (
            f"the gradients of {listing(where)} are exactly 0 in {updates} updates in a row, and were not before step "
            f"{since}"
        )
        yield self.finding(facts, since, text, {"modules": int(ended.sum()), "updates": updates}, where)
