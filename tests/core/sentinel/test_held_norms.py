"""Norms of the gradients of the latest updates: what stood out before an update."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from probe.core.sentinel import held_norms
from probe.core.sentinel.held_norms import MOST_SEARCHES, UPDATES, HeldNorms

NAMES = tuple(f"layers.{n}.weight" for n in range(12))
NOISE = np.random.default_rng(0)


def facts(step: int, **fields: Any) -> Any:
    """Return the facts of an update that are held."""
    usual = {"step": step, "optimizer": 0, "names": NAMES, "sizes": (64,) * len(NAMES), "outcome": "applied"}
    usual |= {"rates": (1e-3, np.nan), "training": True}
    return SimpleNamespace(**{**usual, **fields})


def gradients(factors: dict[int, float] | None = None) -> np.ndarray:
    """Return norm and sum of each gradient, some of them multiplied."""
    norms = np.exp(NOISE.normal(0, 0.3) + NOISE.normal(0, 0.1, len(NAMES)))
    for place, factor in (factors or {}).items():
        norms[place] *= factor
    return np.column_stack((norms, norms))


def held(until: int, onset: int, **fields: Any) -> HeldNorms:
    """Return the norms of updates of which one gradient is ten times as large from a step on."""
    norms = HeldNorms()
    for step in range(until):
        norms.hold(facts(step, **fields), gradients({4: 10.0} if step >= onset else None))
    return norms


def test_the_gradient_that_grew_before_is_named() -> None:
    """With the first update; updates from the step of the finding on do not count."""
    norms = held(until=300, onset=290)
    found = norms.onset(299)
    assert found is not None
    assert (found.where, found.step, found.samples) == ("layers.4.weight", 290, 9)
    assert found.chance <= 0.05
    assert norms.onset(289) is not None
    assert norms.onset(289).where == ""  # type: ignore[union-attr]


def test_skipped_updates_and_numbers_that_could_not_be_read_are_left_out() -> None:
    """A scaler skips them because their gradients are not finite."""
    norms = held(until=100, onset=1000)
    for step in range(100, 110):
        norms.hold(facts(step, outcome="skipped"), gradients({3: np.inf}))
        norms.hold(facts(step), np.empty((0, 2)))
    found = norms.onset(110)
    assert found is not None
    assert (found.where, found.looked) == ("", 50)


def test_other_parameters_begin_a_new_history() -> None:
    """Too short a one has no answer; that of another optimizer has."""
    norms = held(until=60, onset=1000)
    norms.hold(facts(60, names=(*NAMES[:-1], "new")), gradients())
    found = norms.onset(61)
    assert found is not None
    assert found.looked == 0
    assert "layers.4.weight at step 90" in str(held(100, 90, optimizer=1).onset(100).text())  # type: ignore[union-attr]


@pytest.mark.parametrize("change", [{"rates": (1e-3, 1e-2)}, {"rates": (2e-3, 1e-3)}, {"training": False}])
def test_a_known_change_begins_a_new_history(change: dict[str, Any]) -> None:
    """A gradient that moves with the rate of a group, or with the mode of the model, is no cause."""
    norms = HeldNorms()
    for step in range(100):
        fields = {"rates": (1e-3, 1e-3), **(change if step >= 90 else {})}
        norms.hold(facts(step, **fields), gradients({4: 10.0} if step >= 90 else None))
    found = norms.onset(99)
    assert found is not None
    assert (found.where, found.looked) == ("", 0)


def test_what_is_unknown_or_small_is_no_change() -> None:
    """A schedule changes rates by parts, and not every update has a mode or a rate that the host knows."""
    norms = HeldNorms()
    for step in range(100):
        fields = {"rates": (1e-3 * 0.99**step, np.nan if step % 2 else 1e-3), "training": None if step % 3 else True}
        norms.hold(facts(step, **fields), gradients({4: 10.0} if step >= 90 else None))
    assert "layers.4.weight at step 90" in str(norms.onset(99).text())  # type: ignore[union-attr]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kilobyte a parameter; of very many parameters fewer updates are held, and few searches are made."""
    norms = held(until=UPDATES + 50, onset=1000)
    assert norms.bytes == 4 * UPDATES * len(NAMES)
    monkeypatch.setattr(held_norms, "MOST_BYTES", 4 * len(NAMES) * 40)
    few = held(until=100, onset=95)
    assert few.bytes == 4 * 40 * len(NAMES)
    assert few.onset(100).looked == 8  # type: ignore[union-attr]
    answers = [norms.onset(step) for step in range(200, 210)]
    assert [answer is None for answer in answers] == [False] * MOST_SEARCHES + [True] * (10 - MOST_SEARCHES)
