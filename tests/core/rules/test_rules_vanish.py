"""``AnomalyVanish``: a layer's gradient that is gone, and all that only looks like it."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from probe.core.records import Key
from probe.core.rules.vanish import AnomalyVanish
from tests.core.rules.rule_batches import W, norms

OTHER, THIRD = Key("other.weight"), Key("third.weight")


def vanish(**changes):
    args = {"window": 32, "warm_up": 10, "min_ratio": 1e3, "steps": 5}
    return AnomalyVanish(SimpleNamespace(**{**args, **changes}), 0, ("norm", "max"))


def found(rule, *series, signal="grad_reduced", start=0):
    """The step and key of each finding in the norms of W, OTHER and THIRD."""
    keys = (W, OTHER, THIRD)
    return [
        (finding.step, finding.key)
        for step, values in enumerate(zip(*series, strict=True), start)
        for finding in rule.judge(norms(dict(zip(keys, values, strict=False)), step, signal=signal))
    ]


@pytest.mark.parametrize("gone", [0.0, 2e-4, 1e-150])
@pytest.mark.parametrize("signal", ["grad_reduced", "grad_unreduced", "actv_grad"])
def test_what_is_gone_is_named_once(gone, signal):
    """From 0.5 to next to nothing for good, while another goes on: reported at the fifth sample, with the median."""
    series = [0.5] * 20 + [gone] * 60
    assert found(vanish(), series, [1.0] * 80, signal=signal) == [(24, W)]
    rule = vanish(steps=1)
    found(rule, [0.5] * 20, [1.0] * 20, signal=signal)
    (finding,) = rule.judge(norms({W: gone, OTHER: 1.0}, 20, signal=signal))
    assert (finding.op, finding.value, finding.expected) == ("norm", gone, pytest.approx(0.5))


def test_a_thousandfold_is_the_limit():
    """2.1e-3 of it is small and healthy, 0.9e-3 is not."""
    assert found(vanish(), [1.0] * 20 + [2.1e-3] * 10, [1.0] * 30) == []
    assert found(vanish(), [1.0] * 20 + [0.9e-3] * 10, [1.0] * 30) == [(24, W)]


def test_four_samples_are_not_enough():
    """A branch that a few batches leave out."""
    assert found(vanish(), ([1.0] * 20 + [0.0] * 4) * 6, [1.0] * 144) == []


def test_training_that_converges_is_silent():
    """All gradients fall to a millionth, within 30 steps or from one to the next, and swing by factors of their own."""
    random = np.random.default_rng(0)
    swing = np.exp(random.normal(0, 0.5, (3, 200)))
    slope = np.exp(-np.arange(200) / 30 * math.log(1e6)).clip(1e-9)
    cliff = np.where(np.arange(200) < 100, 1.0, 1e-6)
    for level in (slope, cliff):
        assert found(vanish(steps=1), *(level * swing)) == []


def test_one_that_falls_while_all_converge_is_found():
    """All fall to a hundredth at step 50; one falls to a ten-millionth."""
    level = np.where(np.arange(100) < 50, 1.0, 1e-2)
    assert found(vanish(), np.where(np.arange(100) < 50, 1.0, 1e-7), level, level) == [(54, W)]


def test_a_gradient_that_was_never_there_is_not_missed():
    """Zero from the start; zero six times in ten; zero at first, as the gradient of an adapter's first matrix is."""
    ones = [1.0] * 60
    assert found(vanish(), [0.0] * 60, ones) == []
    assert found(vanish(), ([0.0] * 6 + [1.0] * 4) * 6, ones) == []
    assert found(vanish(), [0.0] * 30 + [1.0] * 30, ones) == []
    assert found(vanish(), [0.0] * 30 + [1.0] * 11 + [0.0] * 10, [1.0] * 51) == [(45, W)]


def test_a_coefficient_that_goes_to_zero_is_silent():
    """A gradient that falls to 0 in even steps has a coefficient; one that ends at once, or from next to nothing, is
    gone."""
    faded = [max(0.0, 1 - step / 40) for step in range(60)]
    assert found(vanish(), faded, [1.0] * 60) == []
    assert found(vanish(), [*faded[:20], *[0.0] * 40], [1.0] * 60) == [(24, W)]
    assert found(vanish(), [*[1.0] * 20, 1e-5, *[0.0] * 39], [1.0] * 60) == [(24, W)]


def test_half_zeros_have_no_size():
    """Between 0 and 1 there is no median to compare with."""
    assert found(vanish(window=4, warm_up=4, steps=1), [1.0, 0.0, 1.0, 0.0, 0.0], [1.0] * 5) == []
    assert found(vanish(window=4, warm_up=4, steps=1), [1.0, 0.0, 1.0, 1.0, 0.0], [1.0] * 5) == [(4, W)]


def test_other_signals_nan_and_inf_are_not_judged():
    """An activation of zero is no gradient; NaN and Inf neither break a run of small ones nor count."""
    assert found(vanish(), [1.0] * 20 + [0.0] * 10, [1.0] * 30, signal="actv") == []
    broken = [1.0] * 20 + [0.0, math.nan, 0.0, math.inf, 0.0, 0.0, 0.0]
    assert found(vanish(), broken, [1.0] * 27) == [(26, W)]


def test_what_recovers_and_vanishes_again_is_reported_again():
    """Twice gone, two findings."""
    series = ([1.0] * 20 + [0.0] * 6) * 2
    assert found(vanish(), series, [1.0] * 52) == [(24, W), (50, W)]
