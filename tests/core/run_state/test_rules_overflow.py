"""RunOverflow: bursts of updates that a gradient scaler skipped."""

from __future__ import annotations

import pytest

from tests.core.run_state.run_steps import found, places, rule_of, steps_of


def judged(outcomes, **args):
    """Findings for outcomes as letters: ``s`` skipped, ``a`` applied, ``u`` unknown."""
    names = {"s": "skipped", "a": "applied", "u": "unknown"}
    steps = steps_of(loss=[1.0] * len(outcomes), outcomes={n: names[letter] for n, letter in enumerate(outcomes)})
    return found(rule_of("RunOverflow", **args), steps)


HEALTHY = {
    "the warm-up of float16": "s" * 24 + "a" * 50,
    "a warm-up in pieces": "s" * 16 + "aas" * 8 + "a" * 50,
    "one skipped update whenever the scale grows": ("a" * 40 + "s") * 5,
    "four of twenty": "a" * 30 + "ssss" + "a" * 30,
    "unknown outcomes": "a" * 30 + "u" * 60,
    "no scaler": "a" * 80,
}


@pytest.mark.parametrize("kind", HEALTHY)
def test_healthy_scalers_are_silent(kind):
    """No finding while a scale is found, nor when it is tried whether it may grow."""
    assert judged(HEALTHY[kind]) == []


def test_a_burst_is_found_at_the_fifth_and_its_end_after_twenty():
    """Five of the last twenty updates are a burst, which is over when none of twenty was skipped."""
    findings = judged("a" * 30 + "sasasasasa" + "a" * 30)
    assert places(findings) == [("skipped_updates", 38, False), ("skipped_updates", 58, True)]
    assert findings[0].message == "5 of the last 20 updates were skipped by the gradient scaler, at step 38"
    assert (findings[0].value, findings[0].severity) == (5, "warning")


def test_a_burst_right_after_the_warm_up_is_found():
    """The updates skipped in the warm-up do not count, later ones do."""
    assert places(judged("s" * 20 + "a" * 10 + "ssss" + "a" * 20)) == []
    assert places(judged("s" * 20 + "a" * 10 + "sssss")) == [("skipped_updates", 34, False)]


def test_a_run_without_any_update_is_critical():
    """A scale that falls for ever is found once the warm-up is over."""
    [finding] = judged("s" * 100)
    assert (finding.step, finding.severity) == (64, "critical")


def test_unknown_outcomes_do_not_part_a_burst():
    """Steps of unknown outcome are not counted."""
    assert places(judged("a" * 30 + "s" + "uuuuuu" * 3 + "ssss")) == [("skipped_updates", 52, False)]
