"""Check for leaps of the norm of the gradients."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from math import exp, isfinite, log

import numpy as np

from probe.core.checks.check import CheckFinding, JudgedUpdate
from probe.core.checks.leap import PATIENCE, Leap, LeapMemory
from probe.core.checks.loop_check import ChangeCheck
from probe.core.checks.update_facts import Array
from probe.core.language import joined, message
from probe.core.robust import MAD_TO_SIGMA

RISE = 4.0
"""Robust standard deviations above its median at which a loss is higher than usual."""
RECENT = 24
"""Latest losses that are compared with."""
FEWEST = 5
"""Losses that are enough for that."""
BEFORE = 3
"""Updates before a leap whose norms are compared with those of the leap."""
STILL = 0.25
"""Part of the largest leap of a gradient, as a logarithm, below which another one has not leapt."""
FEWEST_ELEMENTS, FAINT = 16, 1e-3
"""Elements of a gradient that is compared, and the part of the median root mean square that it must have."""


class GradientLeap(ChangeCheck):
    """Report that the norm of all gradients leaps above all that the run has had, and comes back or goes on rising.

    A leap is twelve robust standard deviations of the latest 50 logarithms, three times the largest deviation among
    them, and a factor of four. If the loss is higher than usual as well and stays so, the data or the task are others,
    as at the next stage of a curriculum: that is no finding.

    If some gradients have leapt and others not at all, the last that has, in the order of the optimizer, is named: a
    backward that goes wrong leaves those nearer to the loss as they are, and spoils all upstream.
    """

    name = "gradient-leap"
    title = "Gradient leaps"
    why = "One such gradient undoes many updates, or fills the optimizer's moments for thousands of steps."
    source = "https://arxiv.org/abs/2604.00726"
    sees = "norms of the gradients at each update, before clipping, and the loss where it is known on the host"
    remedy = (
        "Look at the batch of this step; if it is as others, compare with other ranks, and with the step computed "
        "again: if the leap does not repeat, a device is faulty."
    )
    lacks = "fewer than 20 norms of the same gradients could be read"

    def __init__(self) -> None:
        super().__init__()
        self._memory = LeapMemory(logarithmic=True)
        self._losses: deque[tuple[int, float]] = deque(maxlen=RECENT)
        self._leap: Leap | None = None
        """Leap whose loss has not come back yet."""
        self._waited = 0
        self._latest: deque[tuple[int, tuple[str, ...], Array]] = deque(maxlen=1 + PATIENCE + BEFORE)
        """Step, names and norms of the latest updates."""
        self._where: tuple[str, ...] = ()

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts, total = update.facts, update.total
        if facts.outcome == "skipped" or update.norms is None:
            return
        if isfinite(facts.loss):
            self._losses.append((facts.step, facts.loss))
        self._latest.append((facts.step, facts.names, update.norms))
        if isfinite(total) and total > 0:
            leap = self._memory.judge((facts.backwards, update.pattern), total, facts.step)
            self.judged = self.judged or self._memory.ready
            if leap is not None and leap.course != "stayed":
                self._leap, self._waited, self._where = leap, 0, self._place(leap.since, facts.sizes)
        if self._leap is not None:
            yield from self._decide(update, self._leap)

    def _decide(self, update: JudgedUpdate, leap: Leap) -> Iterator[CheckFinding]:
        """Report a leap unless the loss has leapt, too, and is still higher than usual."""
        before = np.array([loss for step, loss in self._losses if step < leap.since])
        self._waited += 1
        if leap.course == "returned" and self._losses and len(before) >= FEWEST:
            middle = float(np.median(before))
            sigma = max(MAD_TO_SIGMA * float(np.median(np.abs(before - middle))), 0.01 * abs(middle))
            if self._losses[-1][1] > middle + RISE * sigma:
                if self._waited > PATIENCE:
                    self._leap = None
                return
        self._leap = None
        course = message("has come back" if leap.course == "returned" else "goes on rising")
        text = message(
            "the norm of all gradients has leapt to {value:.4g} at step {since} and {course}; its median before is "
            "{median:.4g}",
            value=exp(leap.value),
            since=leap.since,
            course=course,
            median=exp(leap.median),
        )
        evidence = {"norm": exp(leap.value), "median": exp(leap.median), "deviations": leap.deviations}
        if self._where:
            last = message("{name} is the last parameter whose gradient has leapt", name=self._where[0])
            text = joined("; ", [text, last])
        yield self.finding(update.facts, leap.since, text, evidence, self._where)

    def _place(self, since: int, sizes: tuple[int, ...]) -> tuple[str, ...]:
        """Return the last parameter whose gradient has leapt, if others have not."""
        leaps = [(names, norms) for step, names, norms in self._latest if step == since]
        if not leaps:
            return ()
        names, norms = leaps[-1]
        before = [past for step, others, past in self._latest if step < since and others is names]
        last = None if not before else last_of(np.median(before, axis=0), norms, sizes)
        return () if last is None or not names[last] else (names[last],)


def last_of(before: Array, norms: Array, sizes: tuple[int, ...]) -> int | None:
    """Return the place of the last gradient that has leapt; None if none, all, or some have leapt halfway.

    Args:
        before: norms of the same gradients before the leap.
        sizes: number of elements of each; empty if they are not known.
    """
    elements = np.asarray(sizes or (FEWEST_ELEMENTS,) * len(norms), np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        means = before / np.sqrt(np.maximum(elements, 1))
        moved = np.log(norms / before)
    judged = np.isfinite(moved) & (elements >= FEWEST_ELEMENTS)
    judged &= means >= FAINT * np.median(means[judged]) if judged.any() else False
    places = np.flatnonzero(judged)
    moved = moved[places] / max(moved[places].max(initial=0.0), log(2.0))
    leapt = moved > 0.5
    if not leapt.any() or leapt.all() or (moved[~leapt] > STILL).any():
        return None
    return int(places[leapt][-1])
