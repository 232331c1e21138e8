"""Check for gradients of a part of the model that leap away from those of the rest."""

from __future__ import annotations

from collections.abc import Iterator
from math import exp, log

import numpy as np

from probe.core.checks.check import CheckFinding, JudgedUpdate
from probe.core.checks.loop_check import ChangeCheck
from probe.core.checks.places import ancestors, listing
from probe.core.checks.update_facts import Array, Mask, count_of, is_all, is_any
from probe.core.language import message
from probe.core.robust import common_movement, medians_of, spreads_of

WINDOW, LEAST = 32, 24
"""Updates that are compared with, at most and at least."""
FEWEST_UPDATES = 8
"""Updates of a window from which on it shows how large a gradient usually is."""
ROWS = 5
"""Gradients of which the common movement is taken, at least."""
DEVIATIONS = 10.0
"""Robust standard deviations (of logarithms) beyond which a gradient is apart."""
FLOOR = 0.25
"""Least value of such a standard deviation."""
AWAY = log(8.0)
"""Least movement against the other gradients."""
ABOVE = log(3.0)
"""Least rise above the highest norm of the window."""
FEWEST_ELEMENTS = 16
"""Fewest elements of a gradient that is judged."""
FAINT = 1e-3
"""Least root mean square of a gradient that is judged, as a part of the median of all."""
FADED = 0.03
"""Part of its largest usual norm below which a gradient has faded: its parameters have converged, and a rare reward or
class, when it comes, makes the gradient leap. Norms of the first window do not count: those of the first updates are
often many times as large as all later ones."""
PATIENCE = 10
"""Updates in a row without a gradient apart after which the next one is reported."""


class GradientApart(ChangeCheck):
    """Report gradients that leap while the others do not: a wrong product, a flipped bit, rows that a batch alone uses.

    Gradients rise and fall together with the batch and the loss. So the logarithm of each norm is taken relative to its
    median over the latest 32 updates, and the median of these movements over all gradients is taken out. What is left
    must be beyond ten robust standard deviations of its own past and a factor of eight, and the norm three times the
    largest of the window; of a gradient that has faded, three times the largest of the run. Gradients of few elements,
    and those at rounding level, are left out; other parameters with a gradient begin another past.
    """

    name = "gradient-apart"
    title = "Gradient apart"
    why = "A wrong number in one layer is averaged into all replicas, and the loss does not show it."
    source = "https://arxiv.org/abs/2502.12340"
    sees = "norms of the gradients at each update, before clipping"
    remedy = (
        "Compute the step again from the weights of before: if the leap does not repeat, a device is faulty; else look "
        "at what this batch has that others do not, and at the inputs of the layer."
    )
    lacks = "fewer than 24 norms of the same five gradients or more could be read"

    def __init__(self) -> None:
        super().__init__()
        self._there, self._finite = b"", np.zeros(0, np.bool_)
        self._names: tuple[str, ...] | None = None
        self._past: Array = np.empty((0, 0))
        """Logarithms of the norms of the latest updates, a row each."""
        self._number = 0
        self._usual = np.empty(0)
        """Largest mean over a window of the logarithms of each parameter's norms."""
        self._highest = np.empty(0)
        """Largest logarithm of each parameter's norms."""
        self._updates = 0
        self._quiet = PATIENCE

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts, norms = update.facts, update.norms
        if facts.outcome == "skipped" or norms is None:
            return
        pattern = update.pattern
        if not update.finite:
            pattern = (facts.gradients.there & np.isfinite(norms) & (norms > 0)).tobytes()
        if pattern != self._there or facts.names is not self._names:
            self._remember()
            if facts.names != self._names:
                self._usual, self._highest = np.full((2, len(facts.names)), -np.inf)
            self._there, self._names = pattern, facts.names
            self._finite, self._number = np.frombuffer(pattern, np.bool_), 0
            self._past = np.zeros((WINDOW, count_of(self._finite)))
        if self._past.shape[1] < ROWS:
            return
        finite = self._finite
        levels = np.log(norms if is_all(finite) else norms[finite])
        if self._number >= LEAST:
            self.judged = True
            apart = self._apart(levels, facts.sizes, finite)
            if apart is not None and self._quiet >= PATIENCE:
                yield self._finding(update, np.flatnonzero(finite)[apart].tolist(), levels[apart], apart)
            self._quiet = 0 if apart is not None else self._quiet + 1
        self._past[self._number % WINDOW] = levels
        self._number, self._updates = self._number + 1, self._updates + 1
        if self._number % WINDOW == 0:
            self._remember()

    def _remember(self) -> None:
        """Remember how large gradients have been, from a window that is full or ends early."""
        past, finite = self._past[: self._number], self._finite
        if self._updates > WINDOW and len(past) >= FEWEST_UPDATES:
            self._usual[finite] = np.maximum(self._usual[finite], past.mean(axis=0))
            self._highest[finite] = np.maximum(self._highest[finite], past.max(axis=0))

    def _apart(self, levels: Array, sizes: tuple[int, ...], finite: Mask) -> Mask | None:
        """Return the gradients that are apart; None if none is."""
        past, before = self._past[: self._number], self._past[(self._number - 1) % WINDOW]
        if not is_any(levels - before > ABOVE) or not is_any(levels - past.max(axis=0) > ABOVE):  # mostly, and quicker
            return None
        middles = medians_of(past.T)
        movements = levels - middles
        usual = past.T - middles[:, None]
        usual -= common_movement(usual, least=ROWS)
        spreads = spreads_of(usual, medians_of(usual))
        residuals = movements - common_movement(movements[:, None], least=ROWS)[:, 0]
        elements = np.asarray(sizes or (FEWEST_ELEMENTS,) * len(finite), np.float64)[finite]
        squares = middles - 0.5 * np.log(np.maximum(elements, 1))
        apart: Mask = (
            (residuals > np.maximum(AWAY, DEVIATIONS * np.maximum(spreads, FLOOR)))
            & (levels - past.max(axis=0) > ABOVE)
            & (elements >= FEWEST_ELEMENTS)
            & (squares >= np.median(squares) + log(FAINT))
            & ((middles >= self._usual[finite] + log(FADED)) | (levels - self._highest[finite] > ABOVE))
        )
        return apart if apart.any() else None

    def _finding(self, update: JudgedUpdate, places: list[int], levels: Array, apart: Mask) -> CheckFinding:
        facts = update.facts
        middles = np.median(self._past[: self._number], axis=0)[apart]
        worst = int(np.argmax(levels - middles))
        names = [facts.names[place] for place in places]
        where = ancestors(names, facts.names)
        times = exp(float(levels[worst] - middles[worst]))
        text = message(
            "the gradient of {places} has leapt away from the others: its norm is {times:.4g} times the median of "
            "the latest {number} updates",
            places=listing(where),
            times=times,
            number=min(self._number, WINDOW),
        )
        evidence = {"norm": exp(float(levels[worst])), "median": exp(float(middles[worst])), "gradients": len(names)}
        return self.finding(facts, facts.step, text, evidence, where)
