"""Check for modules whose gradient has become exactly zero."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from math import isfinite

import numpy as np

from probe.core.checks.check import CheckFinding, Grade, JudgedUpdate
from probe.core.checks.loop_check import ChangeCheck
from probe.core.checks.places import ancestors, listing, module_of
from probe.core.checks.update_facts import Array, Mask, UpdateFacts, is_any
from probe.core.language import message

SOON = 8
"""Updates in a row without a gradient after which a regular module is reported."""
ALWAYS = 20
"""Updates in a row with a gradient that make a module a regular one."""
LATE = 20
"""Updates in a row without a gradient after which other modules, and experts, are reported: a router may leave these
out for a while."""
SOMETIMES = 3
"""Updates in a row with a gradient that these must have had before."""
FADED = 0.25
"""Part of its usual size below which a norm has faded: a coefficient of the loss goes to 0."""
SLOWNESS = 0.05
"""Weight of an update in the running mean that is the usual size."""
NOTHING = 100
"""Updates from the beginning on with zeros alone and losses of 0 after which these are noted: rewards may be rare."""
LOSSES, STEADY = 10, 0.25
"""Losses before all gradients are 0, and the part of the greatest that each of them is, if no loss has faded."""
MUCH = 0.2
"""Part of the elements of all parameters that have had a gradient."""
EXPERT, AUXILIARY = re.compile(r"expert", re.IGNORECASE), re.compile(r"(?<![a-z])aux(?!in)", re.IGNORECASE)


class GradientGone(ChangeCheck):
    """Report modules that have lost their gradient for some updates in a row: it is exactly zero, or none is computed.

    That counts only of parameters that still require one. A module that loses it as another one begins to have one is
    the head of an earlier task, one that had it back before has a coefficient that comes and goes, one whose gradient
    has shrunk before has a coefficient that goes to 0, and a small one at the end, or one that is called so, may be
    an auxiliary head. Updates in which all gradients of the optimizer are zero count only if the loss is known not to
    be zero: a hinge loss may be satisfied.

    Modules whose gradients were exactly zero in all of the first updates are reported, too, if they are much of the
    model, and its beginning: a step such as rounding has no slope. Others may wait for a part of the loss. So are all
    gradients together, of losses that are not 0; a hundred updates with losses of 0 and no gradient are noted. Later, a
    loss that is 0 with all gradients is reported if it was steady before: one that is satisfied has faded.
    """

    name = "gradient-gone"
    title = "Gradient has vanished"
    why = "The module, and all that lies before it, is no longer trained."
    source = "https://doi.org/10.1109/ICSE43902.2021.00043"
    sees = "norms of the gradients at each update, by module"
    remedy = (
        "If they are exactly 0, look at the update just before: a rate or a batch that was too large has driven "
        "activations to where their slope is zero, or numbers below the range of float16. If none are computed, look "
        "for detach() and no_grad()."
    )
    lacks = "no norm of a gradient could be read"

    def __init__(self) -> None:
        super().__init__()
        self._names: tuple[str, ...] | None = None
        self._idle, self._has_loss, self._since_first = 0, False, -1
        """Updates from the beginning on with zeros alone, whether a loss of theirs was not 0, and the first step."""
        self._losses, self._zeros = deque[float](maxlen=LOSSES), 0
        """Latest losses of updates with gradients, and updates in a row with losses and gradients of 0."""

    def _begin(self, names: tuple[str, ...]) -> None:
        """Forget all modules: there are others now."""
        self._names = names
        modules = [module_of(name) for name in names]
        places = {module: place for place, module in enumerate(dict.fromkeys(modules))}
        self._module, number = np.array([places[module] for module in modules], dtype=np.int64), len(places)
        self._updates = self._alike = 0
        self._last: tuple[bytes, bytes] | None = None
        """Gradients that were not zero, and parameters that required one, at the last update, if no module was without
        a gradient; updates like it since then, and modules that have lived in these."""
        self._alive = np.zeros(number, dtype=np.bool_)
        self._missing = np.zeros(number, dtype=np.int64)
        """Updates in a row without a gradient."""
        self._lived = np.zeros(number, dtype=np.int64)
        """Updates in a row with a gradient, before these."""
        self._since, self._excused = np.full(number, -1, dtype=np.int64), np.zeros(number, dtype=np.bool_)
        self._revived = np.zeros(number, dtype=np.bool_)
        """Modules whose gradient has come back after it was gone for some updates, as a coefficient of the loss may."""
        self._usual = np.zeros(number)
        """Usual sum of the squares of a module's gradients."""
        self._latest = np.zeros(number)
        """Such a sum in the latest update that had gradients of the module."""
        self._auxiliary = np.array([AUXILIARY.search(module) is not None for module in places], dtype=np.bool_)
        self._expert = np.array([EXPERT.search(module) is not None for module in places], dtype=np.bool_)

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        if facts.outcome == "skipped" or update.norms is None or not is_any(facts.gradients.there):
            return
        if facts.names is not self._names and facts.names != self._names:
            self._begin(facts.names)
        if 1 in update.pattern:
            self._losses.append(facts.loss)
            self._zeros = 0
        seen = update.pattern, facts.trainable.tobytes()
        if seen == self._last:  # and no module was without a gradient: most updates are like the one before
            self._alike += 1
            self._size(update.norms, self._alive)
            return
        self._add_alike()
        alive = self._any(np.frombuffer(update.pattern, np.bool_))
        yield from self._idles(facts, bool(alive.any()))
        if not alive.any() and not (facts.loss_seen and facts.loss):
            return
        self.judged = True
        gone = self._any(facts.trainable) & ~alive
        self._count(alive, gone, facts.step)
        self._size(update.norms, alive)
        if gone.any():
            yield from self._report(update, gone)
        else:
            self._last, self._alive = seen, alive

    def _add_alike(self) -> None:
        """Count the updates that were like the last one."""
        if self._alike:
            self._updates += self._alike
            self._lived[self._alive] += self._alike
        self._last, self._alike = None, 0

    def _any(self, mask: Mask) -> Mask:
        """Return for each module whether any of its parameters is chosen."""
        return np.bincount(self._module[mask], minlength=len(self._since)) > 0

    def _count(self, alive: Mask, gone: Mask, step: int) -> None:
        """Count the update of each module, and excuse those that make room for others."""
        self._updates += 1
        fresh = bool((alive & ((self._missing > 0) | (self._lived == 0))).any()) and self._updates > 1
        self._since[gone & (self._missing == 0)] = step
        self._revived |= alive & (self._missing >= SOON) & ~self._expert
        self._lived = np.where(alive, np.where(self._missing > 0, 1, self._lived + 1), self._lived)
        self._missing = np.where(gone, self._missing + 1, np.where(alive, 0, self._missing))
        self._excused = gone & (self._excused | (fresh & (self._missing <= 2)))

    def _size(self, norms: Array, alive: Mask) -> None:
        """Remember how large the gradient of each module is."""
        squares = norms * norms
        if not isfinite(squares.sum()):
            squares = np.square(np.where(np.isfinite(norms), norms, 0.0))
        sizes = np.bincount(self._module, squares, len(self._since))
        fresh = alive & (self._usual == 0)
        self._usual = np.where(
            fresh, sizes, np.where(alive, self._usual + SLOWNESS * (sizes - self._usual), self._usual)
        )
        self._latest = np.where(alive, sizes, self._latest)

    def _is_trunk(self, absent: Mask, sizes: tuple[int, ...]) -> bool:
        """Return whether modules without a gradient are the first of the model, which any cut of the graph takes away,
        or much of it; else they may be an auxiliary head that is used for a while."""
        if absent[np.flatnonzero(self._lived)[0]]:
            return True
        elements = np.bincount(self._module, sizes or None, minlength=len(self._since)) * (self._lived > 0)
        return bool(elements[absent].sum() >= MUCH * elements.sum())

    def _report(self, update: JudgedUpdate, gone: Mask) -> Iterator[CheckFinding]:
        facts = update.facts
        regular = (self._lived >= ALWAYS) & ~self._expert
        zero = self._any(facts.gradients.there) & (self._lived >= SOMETIMES)
        soon = regular & (self._missing == SOON)
        late = ~regular & zero & (self._missing == LATE)
        faded = self._latest < FADED**2 * self._usual
        yield from self._never(update, gone)
        ended = gone & ~self._excused & ~self._revived & ~self._auxiliary & ~faded & (soon | late)
        absent = ended & ~self._any(facts.gradients.there)
        if absent.any() and not self._is_trunk(absent, facts.sizes):
            ended &= ~absent
        if not ended.any():
            return
        counted = facts.trainable | facts.gradients.there
        names = [name for name, counts in zip(facts.names, counted, strict=True) if counts]
        lost = [name for name, is_lost in zip(facts.names, counted & ended[self._module], strict=True) if is_lost]
        where = ancestors(lost, names)
        updates, since = int(self._missing[ended].min()), int(self._since[ended].min())
        how = message("exactly 0" if self._any(facts.gradients.there)[ended].any() else "not computed")
        text = message(
            "the gradients of {places} are {how} in {updates} updates in a row, and were not so before step {since}",
            places=listing(where),
            how=how,
            updates=updates,
            since=since,
        )
        yield self.finding(facts, since, text, {"modules": int(ended.sum()), "updates": updates}, where)

    def _idles(self, facts: UpdateFacts, alive: bool) -> Iterator[CheckFinding]:
        """Report that no update since the beginning had a gradient."""
        is_cleared = facts.rewritten and facts.clips is None  # after the backward, which is another matter
        if alive or is_cleared or self._idle >= NOTHING:
            self._idle = NOTHING
            yield from () if alive else self._ends(facts)
            return
        self._since_first = facts.step if self._since_first < 0 else self._since_first
        self._idle, self._has_loss = self._idle + 1, self._has_loss or (facts.loss_seen and bool(facts.loss))
        if self._idle == (LATE if self._has_loss else NOTHING):
            text = message("all gradients are exactly 0 in all of the first {updates} updates", updates=self._idle)
            grade: Grade = self.grade if self._has_loss else "note"
            yield self.finding(facts, self._since_first, text, {"updates": self._idle}, grade=grade)

    def _ends(self, facts: UpdateFacts) -> Iterator[CheckFinding]:
        """Report a loss that has become 0 with all gradients, and was steady before."""
        self._since_first = facts.step if not self._zeros else self._since_first
        self._zeros = self._zeros + 1 if facts.loss_seen and not facts.loss else 0
        most = max(self._losses, default=0.0)
        if self._zeros == LATE and len(self._losses) == LOSSES and min(self._losses) > STEADY * most > 0:
            text = message(
                "the loss and all gradients are exactly 0 in {updates} updates in a row, after a loss of {loss:.3g}",
                updates=LATE,
                loss=self._losses[-1],
            )
            yield self.finding(facts, self._since_first, text, {"updates": LATE, "loss": self._losses[-1]})

    def _never(self, update: JudgedUpdate, gone: Mask) -> Iterator[CheckFinding]:
        """Report modules that have had zeros alone, as soon as there were enough updates."""
        facts = update.facts
        present = self._any(facts.gradients.there)
        never = gone & present & (self._lived < SOMETIMES) & (self._missing == LATE) & ~self._expert & ~self._auxiliary
        elements = np.bincount(self._module, facts.sizes or None, minlength=len(self._since)) * present
        is_trunk = self._updates < LATE + SOMETIMES and not gone.all() and never[np.flatnonzero(present)[0]]
        if not is_trunk or elements[never].sum() < MUCH * elements.sum():
            return
        names = [name for name, is_zero in zip(facts.names, never[self._module], strict=True) if is_zero]
        where = ancestors(names, facts.names)
        text = message(
            "the gradients of {places} are exactly 0 in all of the first {updates} updates, and those of other "
            "parameters are not",
            places=listing(where),
            updates=LATE,
        )
        since = int(self._since[never].min())
        yield self.finding(facts, since, text, {"modules": int(never.sum()), "updates": LATE}, where)
