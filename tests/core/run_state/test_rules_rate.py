"""``RunRate``: a learning rate that no schedule has."""

from __future__ import annotations

import json

import numpy as np

from tests.core.run_state.run_steps import found, places, rule_of, steps_of

COSINE = 0.5e-3 * (1 + np.cos(np.pi * np.arange(200) / 200))


def rate_places(rates: np.ndarray) -> list[tuple[str, int, bool]]:
    """What is reported of these rates."""
    return places(found(rule_of("RunRate"), steps_of(learning_rate=rates)))


def test_rate_that_leaps_beyond_all_before_is_reported() -> None:
    """Once, and its end: a hundredfold, as of a unit that was mistaken."""
    rates = COSINE.copy()
    rates[100:110] = 0.5
    assert rate_places(rates) == [("learning_rate", 100, False), ("learning_rate", 110, True)]


def test_rate_below_zero_is_reported_from_the_first_one_on() -> None:
    """A linear decay that is stepped beyond its end goes up the gradient."""
    assert rate_places(1e-3 * (1 - np.arange(60) / 40)) == [("learning_rate", 41, False)]
    assert rate_places(np.full(5, -1e-3)) == [("learning_rate", 0, False)]


def test_warm_up_by_epochs_is_none() -> None:
    """It leaves its first rate a thousandfold, and falls as far at once in the end."""
    assert rate_places(np.repeat([1e-7, 2e-4, 4e-4, 6e-4, 1e-3, 1e-4, 1e-8, 0.0, 1e-3], 40)) == []


def test_memory_goes_on_after_a_restart() -> None:
    """What JSON has held judges as if there had been no end."""
    rates = np.append(COSINE[:100], [0.5] * 3)
    whole = rule_of("RunRate")
    found(whole, steps_of(learning_rate=rates[:100]))
    resumed = rule_of("RunRate")
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    assert places(found(resumed, steps_of(100, learning_rate=rates[100:]))) == [("learning_rate", 100, False)]
