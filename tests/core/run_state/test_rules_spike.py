"""RunSpike: leaps of a loss and of a gradient norm, among noise, trends, restarts, zeros and NaN."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.core.run_state.run_steps import found, noise, places, rule_of, steps_of

N = 400
STEP = np.arange(N)
FALLING = 2 + 6 * np.exp(-STEP / 40)
"""Loss that falls, as at the beginning of a training."""


def with_spike(values, at=300, size=3.0, length=1):
    """``values``, times ``size`` for ``length`` steps."""
    values = np.array(values, dtype=float)
    values[at : at + length] *= size
    return values


def judged(loss, name="loss", **args):
    return places(found(rule_of("RunSpike", **args), steps_of(**{name: np.asarray(loss).tolist()})))


RANDOM = np.random.default_rng(7)
HEALTHY = {
    "noise around a level": 2 + noise(N, size=0.1),
    "a falling loss": FALLING + noise(N, size=0.05),
    "a monotonically falling loss": FALLING,
    "a loss that falls in stairs": 3.0 - 0.5 * (STEP // 100),
    "the slow rise after each warm restart": 2 + 1.2 * (1 - np.exp(-(STEP % 130) / 25)) + noise(N, size=0.05),
    "heavy tails of both signs": RANDOM.standard_t(3, N),
    "losses over three orders of magnitude": RANDOM.lognormal(-1, 1.2, N),
    "exponential losses": RANDOM.exponential(0.3, N),
    "turns of a task near 3 and one near 0.1": np.where(RANDOM.random(N) < 0.3, 3.0, 0.1) + noise(N, size=0.01),
    "a constant": np.full(N, 2.0),
    "zeros": np.zeros(N),
    "zeros but for rounding": 1e-8 * noise(N),
    "zeros with small exceptions after a first fall": np.where(STEP < 60, 1.0, np.where(STEP % 37 == 0, 0.1, 0.0)),
    "a negative loss that falls": -STEP / 10 + noise(N, size=0.2),
    "ever smaller losses that leap": np.exp(-STEP / 20) * RANDOM.lognormal(0, 1, N),
    "single values of other losses": 2 + 0.3 * np.sin(STEP / 5) + noise(N, size=0.05),
}


@pytest.mark.parametrize("kind", HEALTHY)
def test_healthy_losses_are_silent(kind):
    """No finding in a loss whose leaps are no larger than its own noise."""
    assert judged(HEALTHY[kind]) == []


@pytest.mark.parametrize(
    "kind",
    [
        "noise around a level",
        "a falling loss",
        "a monotonically falling loss",
        "the slow rise after each warm restart",
        "a constant",
    ],
)
def test_one_step_that_leaps_is_found_with_its_end(kind):
    """A loss three times as large for one step is found there, and is over at the third usual value."""
    assert judged(with_spike(HEALTHY[kind])) == [("loss", 300, False), ("loss", 303, True)]


def test_a_rise_within_a_few_steps_is_a_leap():
    """A loss that doubles over three steps and stays there is found before the third is over, once."""
    values = 2 + noise(N, size=0.05) + 2 * np.clip((STEP - 299) / 3, 0, 1)
    [(name, step, resolved)] = judged(values)
    assert (name, resolved) == ("loss", False)
    assert 300 <= step <= 302


@pytest.mark.parametrize(
    "kind", ["noise around a level", "exponential losses", "losses over three orders of magnitude"]
)
def test_three_high_values_in_a_row_are_found(kind):
    """Values somewhat above the largest of the window are usual alone and in pairs, and a spike if they are three."""
    for length, expected in ((1, []), (2, []), (3, [("loss", 302, False)])):
        values = np.array(HEALTHY[kind])
        values[300 : 300 + length] = max(1.2 * values[90:300].max(), 2.9)
        assert judged(values)[:1] == expected


def test_a_zero_loss_that_leaps_is_found():
    """A loss that has fallen to exactly 0 and comes back is found: no division by what was before."""
    values = np.where(STEP < 100, 4 - STEP / 25, 0.0)
    assert judged(with_spike(values)) == []
    values[300] = 4.0
    assert judged(values)[:1] == [("loss", 300, False)]


def test_a_negative_loss_that_leaps_is_found():
    """Upwards is worse, for losses below 0 too; downwards is not."""
    values = -5 + noise(N, size=0.1)
    values[300] = 3.0
    assert judged(values) == [("loss", 300, False), ("loss", 303, True)]
    values[300] = -13.0
    assert judged(values) == []


def test_nothing_is_found_before_the_warm_up():
    """The first values are not judged, whatever they are."""
    assert judged(with_spike(HEALTHY["noise around a level"], at=40, size=10)) == []
    assert judged(with_spike(HEALTHY["noise around a level"], at=40, size=10), warm_up=20)[:1] == [("loss", 40, False)]


def test_nan_is_neither_judged_nor_held():
    """With NaN and Inf in between, the same spikes are found as without."""
    clean = with_spike(HEALTHY["noise around a level"])
    holes = np.insert(clean, [100, 150, 299], [math.nan, math.inf, -math.inf])
    assert judged(holes) == [("loss", 303, False), ("loss", 306, True)]


def test_a_spike_does_not_hide_the_next():
    """Two equal spikes, the second after the cool-down, are two findings with their ends."""
    values = with_spike(with_spike(HEALTHY["noise around a level"], at=250), at=300)
    assert judged(values) == [("loss", 250, False), ("loss", 253, True), ("loss", 300, False), ("loss", 303, True)]


def test_a_spike_is_none_of_the_values_compared_with():
    """After six high values, the next high one is a spike again."""
    values = 2 + noise(N, size=0.01)
    values[300:306] = values[309] = 8.0
    assert judged(values, cool_down=8) == [
        ("loss", 300, False), ("loss", 308, True), ("loss", 309, False), ("loss", 312, True)
    ]  # fmt: skip


def test_leaps_of_next_to_nothing_are_not_reported():
    """A loss that has fallen a thousandfold leaps a hundredfold at a few thousandths of its first level."""
    values = np.where(STEP < 80, 4.0, 1e-5) * (1 + noise(N, size=0.1))
    values[80:90] = 4 * np.exp(-np.arange(10) * 1.3)
    assert judged(with_spike(values, size=100)) == []
    assert judged(with_spike(values, size=100), share=0.0)[:1] == [("loss", 300, False)]
    assert judged(with_spike(values, size=1e5))[:1] == [("loss", 300, False)]


def test_the_first_value_above_a_loss_of_zeros_is_no_spike():
    """Where there was never another value than 0, nothing is known about the size of a loss."""
    values = np.zeros(N)
    values[300] = 1e-6
    assert judged(values) == []


@pytest.mark.parametrize(
    ("name", "size", "argument"), [("loss", 1.15, "min_ratio"), ("grad_norm", 7.0, "min_ratio_gradients")]
)
def test_a_rise_below_the_least_factor_is_no_spike(name, size, argument):
    """However small the noise, a loss must rise by a fifth and a gradient norm eightfold."""
    values = with_spike(2 * np.exp(noise(N, size=1e-3)), size=size)
    assert judged(values, name) == []
    assert judged(values, name, **{argument: 1.1})[:1] == [(name, 300, False)]


def test_a_number_that_leaps_again_and_again_is_reported_three_times():
    """A loss with a spike every 25 steps is soon known to have them."""
    values = 2 + noise(1000, size=0.05)
    values[300::25] = 8.0
    starts = [step for _, step, resolved in judged(values) if not resolved]
    assert starts[:3] == [300, 325, 350]
    assert len(starts) <= 3 * (700 / 200 + 1)


def test_spikes_within_the_cool_down_are_one_finding():
    """Ten steps of high loss are reported once, and their end once."""
    values = with_spike(HEALTHY["noise around a level"], length=10)
    assert judged(values) == [("loss", 300, False), ("loss", 312, True)]


def test_a_loss_that_stays_high_is_a_new_level():
    """After as many high values as the cool-down has, a further leap from there is found."""
    values = HEALTHY["noise around a level"].copy()
    values[200:] += 4
    values[300] += 12
    assert judged(values) == [("loss", 200, False), ("loss", 300, False), ("loss", 303, True)]


@pytest.mark.parametrize("name", ["val_loss", "loss_scale", "train/loss", "accuracy"])
def test_other_numbers_are_not_judged(name):
    """Names are compared whole."""
    values = with_spike(HEALTHY["noise around a level"], size=50)
    assert judged(values, name.replace("/", "__")) == []
    assert judged(values, name.replace("/", "__"), losses=(name,))[:1] == [(name, 300, False)]


def test_gradient_norms_are_judged_by_factors():
    """Norms that swing fourfold are healthy, twentyfold is a spike; norms of 0 are left out."""
    norms = 0.01 * np.exp(noise(N, size=0.3))
    norms[[120, 121, 290]] = 0.0
    norms[200] = 0.04
    assert judged(norms, "grad_norm") == []
    norms[300] = 0.2
    assert judged(norms, "grad_norm") == [("grad_norm", 300, False), ("grad_norm", 303, True)]


def test_the_message_names_both_values():
    """A finding has the value, the median before it, and both in its sentence."""
    [first, _] = found(rule_of("RunSpike"), steps_of(grad_norm=with_spike(np.full(N, 0.5), size=40).tolist()))
    assert (first.rule, first.severity, first.value) == ("RunSpike", "warning", pytest.approx(20))
    assert first.expected == pytest.approx(0.5)
    assert first.message == "grad_norm leapt to 20 at step 300; median of the 16 before: 0.5"


def test_skipped_steps_are_not_judged():
    """The gradient norm of an update that was skipped is no spike."""
    values = with_spike(np.full(N, 0.5), size=1e6).tolist()
    assert found(rule_of("RunSpike"), steps_of(grad_norm=values, outcomes={300: "skipped"})) == []
    assert found(rule_of("RunSpike"), steps_of(grad_norm=values, outcomes={300: "unknown"})) != []
