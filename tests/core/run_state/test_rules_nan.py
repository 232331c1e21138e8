"""RunNan: numbers that are not finite, and when they are again."""

from __future__ import annotations

import math

import pytest

from probe.core.naming import CLOCKS
from tests.core.run_state.run_steps import found, places, rule_of, steps_of

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("name", ["loss", "grad_norm"])
def test_a_loss_or_gradient_norm_is_reported_from_the_first_step_on(name, bad):
    """It is critical, once, for as long as it lasts."""
    [finding] = found(rule_of("RunNan"), steps_of(**{name: [bad, bad, bad]}))
    assert (finding.name, finding.step, finding.severity, finding.resolved) == (name, 0, "critical", False)
    assert finding.message == f"{name} is {bad} at step 0"


def test_any_other_number_is_reported_once_it_has_been_finite():
    """One that was never finite means nothing; one that becomes NaN is a warning."""
    steps = steps_of(perplexity=[NAN, 3.0, NAN, NAN], unknown=[NAN] * 4)
    [finding] = found(rule_of("RunNan"), steps)
    assert (finding.name, finding.step, finding.severity) == ("perplexity", 2, "warning")


def test_the_end_is_reported_after_three_finite_values():
    """A number that is finite and NaN in turns is one matter; steps without it do not count."""
    loss = [1.0, NAN, 1.0, 1.0, NAN, 1.0, None, 1.0, 1.0, 1.0, NAN]
    assert places(found(rule_of("RunNan"), steps_of(loss=loss))) == [
        ("loss", 1, False), ("loss", 8, True), ("loss", 10, False)
    ]  # fmt: skip


def test_skipped_updates_are_no_alarm():
    """Gradients that a scaler skips are infinite by design: in the warm-up of float16, say."""
    norms = [INF, NAN, INF, 1.0, INF, 1.0]
    outcomes = dict.fromkeys([0, 1, 2, 4], "skipped")
    assert found(rule_of("RunNan"), steps_of(grad_norm=norms, outcomes=outcomes)) == []
    del outcomes[4]
    assert places(found(rule_of("RunNan"), steps_of(grad_norm=norms, outcomes=outcomes))) == [("grad_norm", 4, False)]


@pytest.mark.parametrize("name", [*CLOCKS, "phase__data", "rank__1__outside_seconds"])
def test_measured_times_are_left_out(name):
    """The first step of a process has no time, also after earlier ones had."""
    assert found(rule_of("RunNan"), steps_of(**{name: [1.0, NAN]})) == []
