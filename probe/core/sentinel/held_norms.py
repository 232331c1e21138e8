"""Norms of the gradients of the latest updates, held to look back from what is found."""

from __future__ import annotations

import threading
from math import isnan

import numpy as np
import numpy.typing as npt

from probe.core.checks.update_facts import Array, UpdateFacts
from probe.core.hindsight.excursions import NormTable
from probe.core.hindsight.look_back import Search
from probe.core.hindsight.onset import Onset, rarer
from probe.core.hindsight.usual_rows import FLOORS, logs_of
from probe.core.rules.family import is_far

GRADIENT = "grad_reduced"
"""Signal that the norms are like."""
UPDATES = 256
"""Updates of each optimizer that are held: a kilobyte a parameter."""
MOST_BYTES = 32 << 20
"""Bytes of the norms of one optimizer; beyond it, fewer updates are held."""
MOST_SEARCHES = 4
"""Steps of a run from which is looked back."""


class _Ring:
    """Norms of the latest updates of one optimizer, whose parameters do not change."""

    def __init__(self, names: tuple[str, ...], sizes: npt.NDArray[np.int64]) -> None:
        number = max(1, min(UPDATES, MOST_BYTES // (4 * max(1, len(names)))))
        self.names, self.sizes = names, sizes
        self._norms = np.empty((number, len(names)), np.float32)
        self._steps = np.empty(number, np.int64)
        self._count = 0
        self._rates: tuple[float, ...] = ()
        self._training: bool | None = None
        """Latest learning rates and mode of the model that are known."""

    def follow(self, facts: UpdateFacts) -> None:
        """Forget all norms if an update is of another stage of training: its rates or the mode of the model."""
        before = self._rates if len(self._rates) == len(facts.rates) else facts.rates
        rates = tuple(b if isnan(rate) else rate for rate, b in zip(facts.rates, before, strict=True))
        training = self._training if facts.training is None else facts.training
        is_other_mode = self._training is not None and training != self._training
        if is_other_mode or any(rate != b and is_far(rate, b) for rate, b in zip(rates, before, strict=True)):
            self._count = 0
        self._rates, self._training = rates, training

    def hold(self, step: int, norms: Array) -> None:
        place = self._count % len(self._norms)
        with np.errstate(over="ignore"):
            self._norms[place] = norms
        self._steps[place] = step
        self._count += 1

    @property
    def bytes(self) -> int:
        return self._norms.nbytes

    def before(self, step: int) -> tuple[Array, npt.NDArray[np.int64]]:
        """Return the norms of the updates before a step, in their order, and their steps."""
        first = max(0, self._count - len(self._norms))
        places = np.arange(first, self._count) % len(self._norms)
        places = places[self._steps[places] < step]
        return self._norms[places].astype(np.float64), self._steps[places]


class HeldNorms:
    """Norms of the latest updates of each optimizer. Its methods may be called on any thread.

    Another learning rate, by half, and training after evaluation, or the other way round, begin another history: what
    moved with them is no cause.
    """

    def __init__(self) -> None:
        self._rings: dict[int, _Ring] = {}
        self._answers: dict[int, Onset] = {}
        """Answers by the step of what was found."""
        self._lock = threading.Lock()

    def hold(self, facts: UpdateFacts, gradients: Array) -> None:
        """Hold the norms of an update that was judged; those of one that a scaler has skipped say nothing.

        Args:
            gradients: norm and sum of each gradient; empty if they could not be read.
        """
        if facts.outcome == "skipped" or not facts.names or len(gradients) != len(facts.names):
            return
        with self._lock:
            ring = self._rings.get(facts.optimizer)
            if ring is None or ring.names is not facts.names:
                ring = self._rings[facts.optimizer] = _Ring(facts.names, np.asarray(facts.sizes, np.int64))
            ring.follow(facts)
            ring.hold(facts.step, gradients[:, 0])

    @property
    def bytes(self) -> int:
        """Size of the norms."""
        return sum(ring.bytes for ring in self._rings.values())

    def onset(self, step: int) -> Onset | None:
        """Look back from what began in a step; None if too much was searched already."""
        with self._lock:
            if step not in self._answers:
                if len(self._answers) >= MOST_SEARCHES:
                    return None
                answer: Onset | None = None
                for ring in self._rings.values():
                    answer = rarer(answer, _answer(ring, step))
                self._answers[step] = answer or Onset()
            return self._answers[step]


def _answer(ring: _Ring, step: int) -> Onset:
    norms, steps = ring.before(step)
    rows = len(ring.names)
    sizes = ring.sizes if len(ring.sizes) == rows else np.full(rows, np.iinfo(np.int32).max)
    logs = np.array([logs_of(GRADIENT, line, sizes) for line in norms]).reshape(len(norms), rows)
    table = NormTable(logs, np.zeros(rows, np.int64), np.full(rows, FLOORS[GRADIENT]))
    search = Search(table, np.ones(rows, np.bool_), -np.arange(rows), np.ones(len(logs), np.bool_))
    names = [name or f"parameter {place}" for place, name in enumerate(ring.names)]
    return search.answer(names, [GRADIENT] * rows, steps.tolist())
