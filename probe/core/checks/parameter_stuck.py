"""Check for parameters that never move while others do."""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan

import numpy as np
import numpy.typing as npt

from probe.core.checks.check import CheckFinding, JudgedUpdate
from probe.core.checks.loop_check import FactCheck
from probe.core.checks.places import listing
from probe.core.checks.step_size import GradientMemory, rates_of, step_sizes
from probe.core.checks.update_facts import Array, Mask, UpdateFacts, is_all, is_any
from probe.core.language import message

UPDATES = 5
LEAST_STEP, LEAST_HALF_STEP = 1e-6, 1e-5
"""Size of an update that must be seen in some element, of single and of half precision; below it lie the beginning of a
warm-up and the end of a schedule, where rounding takes the update of numbers around 1."""
LEAST_RATE = 1e-3
"""Share of the highest rate of any group so far below which a group may be frozen by its rate."""


class ParameterStuck(FactCheck):
    """Report parameters that did not move in five updates in which they were looked at, while others moved.

    The update must be large enough to be seen: see :func:`probe.core.checks.step_size.step_sizes`; where the gradient
    has all but vanished beside its own past, as in a part that has converged, it is not. A parameter of half precision,
    or of a precision that is not known, counts only if it has never moved.
    """

    name = "parameter-stuck"
    title = "Parameter never moves"
    why = "Part of the model stays as it was initialised: the update is lost in rounding, or in a copy."
    source = "https://github.com/vllm-project/speculators/issues/765"
    sees = "numbers of a part of the parameters before and after each update, rates, norms and dtypes"
    remedy = (
        "Keep a copy of these parameters in float32, or train in mixed precision; if they are in float32, let the "
        "optimizer write to the parameter itself: a tensor that is not contiguous is often copied."
    )
    lacks = "no parameter with a gradient could be looked at around an update"

    def __init__(self) -> None:
        super().__init__()
        self._names: tuple[str, ...] | None = None
        self._highest_rate, self._reported = 0.0, 0

    def _begin(self, update: JudgedUpdate) -> None:
        """Forget all parameters: there are others now."""
        facts = update.facts
        number = len(facts.names)
        self._names, self._reported = facts.names, 0
        self._still, self._since = np.zeros(number, dtype=np.int64), np.full(number, -1, dtype=np.int64)
        self._moved, self._done = np.zeros(number, dtype=np.bool_), np.zeros(number, dtype=np.bool_)
        dtypes = [dtype.lower() for dtype in facts.parameter_dtypes] or [""] * number
        self._half = np.array([dtype.endswith("float16") for dtype in dtypes], dtype=np.bool_)
        self._full = np.array([dtype.endswith(("float32", "float64")) for dtype in dtypes], dtype=np.bool_)
        self._updates, self._memory = 0, GradientMemory(number)
        self._steady: npt.NDArray[np.int64] | None = None
        """Parameters that were looked at in the last update, if each of them has moved."""

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts, norms = update.facts, update.norms
        if facts.names is not self._names and facts.names != self._names:
            self._begin(update)
        if facts.outcome != "applied" or norms is None:
            return
        self._memory.add(facts, norms)
        if facts.values is None or not len(facts.values.looked):
            return
        self._highest_rate = max(self._highest_rate, *(rate for rate in facts.rates if not isnan(rate)), 0.0)
        looked, moved = facts.values.looked, facts.values.moved
        if is_all(moved) and looked is self._steady:
            self._updates += 1
            return
        self._steady = looked if is_all(moved) else None
        some = is_any(moved)
        if not some and (facts.searches or len(looked) == len(facts.names)):  # see NothingMoves
            return
        self._still[looked[moved]] = 0
        self._moved[looked[moved]] = True
        self._updates += some
        self.judged |= some
        if self._steady is None:
            self._count(facts, looked[~moved], norms)
            if self._updates >= UPDATES:
                yield from self._stuck(update)

    def _count(self, facts: UpdateFacts, positions: npt.NDArray[np.int64], norms: Array) -> None:
        """Count an update of parameters that did not move, of those that should have."""
        usual = np.nan_to_num(rates_of(facts)) >= LEAST_RATE * self._highest_rate
        driven = usual & (step_sizes(facts, norms, self._memory) >= np.where(self._full, LEAST_STEP, LEAST_HALF_STEP))
        still = positions[driven[positions]]
        self._since[still[self._still[still] == 0]] = facts.step
        self._still[still] += 1

    def _stuck(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        stuck = (self._still >= UPDATES) & (self._full | ~self._moved)
        number = int(stuck.sum())
        if not (stuck & ~self._done).any() or (self._reported and number < 2 * self._reported):
            return
        self._done |= stuck
        self._reported = number
        facts = update.facts
        where = tuple(name for name, is_stuck in zip(facts.names, stuck, strict=True) if is_stuck)
        rate = float(np.nanmax(rates_of(facts)))
        text = message(
            "{places}: no number has changed in {updates} updates at a learning rate of {rate:.3g}, though the "
            "gradient is not zero and other parameters move: {reason}",
            places=listing(where),
            updates=UPDATES,
            rate=rate,
            reason=self._reason(stuck),
        )
        since = int(self._since[stuck].min())
        yield self.finding(facts, since, text, {"parameters": number, "rate": rate}, where)

    def _reason(self, stuck: Mask) -> str:
        if self._half[stuck].all():
            return message(
                "in half precision without a copy in float32, the update is less than the rounding of the numbers"
            )
        if self._full[stuck].all():
            return message("the update is lost, as if it were written to a copy")
        return message("the update is lost, or less than the rounding of the numbers")
