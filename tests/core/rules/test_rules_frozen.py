"""``AnomalyFrozen``: a parameter that gets gradients and does not move, and training in which nothing moves."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from probe.core.records import Key, Update
from probe.core.rules.frozen import AnomalyFrozen
from tests.core.rules.rule_batches import OPS, batch_of

NAMES = ("a.weight", "b.weight", "c.weight", "d.weight")


def frozen(ops=OPS, **changes):
    return AnomalyFrozen(SimpleNamespace(**{"steps": 5, **changes}), 0, ops)


class Training:
    """Four parameters under gradient descent in float32; what a monitor sees of each step."""

    def __init__(self, rule, ops=OPS):
        self.rule, self.ops, self.step = rule, ops, 0
        self.random = np.random.default_rng(1)
        self.weights = {name: self.random.normal(0, 0.1, 40).astype(np.float32) for name in NAMES}

    def run(self, steps, rates, gradients=NAMES, sampled=1, scale=1.0):
        """(step, name) of each finding. ``rates`` returns each parameter's learning rate in each step."""
        found = []
        for _ in range(steps):
            before = {name: weight.copy() for name, weight in self.weights.items()}
            slopes = {name: scale * self.random.normal(0, 1, 40) for name in NAMES}
            for name in NAMES:
                self.weights[name] = (before[name] - rates(self.step, name) * slopes[name]).astype(np.float32)
            if self.step % sampled == 0:
                found += self.judged("grad_reduced", {name: slopes[name] for name in gradients})
                found += self.judged("param_origin", before)
                found += self.judged("param_updated", self.weights)
            self.step += 1
        return found

    def judged(self, signal, tensors):
        rows = {Key(name): tensor.astype(np.float64) for name, tensor in tensors.items()}
        return [(f.step, f.key.name) for f in self.rule.judge(batch_of(rows, self.step, self.ops, signal))]


def all_but(name, begin=0, rate=1e-3):
    """Every parameter moves but one, which stands still from ``begin`` on."""
    return lambda step, each: 0.0 if each == name and step >= begin else rate


def test_a_parameter_that_stands_still_is_named_once():
    """From step 8 on: reported at the fifth."""
    assert Training(frozen()).run(30, all_but("b.weight", 8)) == [(12, "b.weight")]


def test_histograms_beside_the_numbers_change_nothing():
    """A parameter is found that stands still, whether or not its elements are counted."""
    ops = (*OPS, "histogram", "q50")
    assert Training(frozen(ops), ops).run(30, all_but("b.weight", 8)) == [(12, "b.weight")]


def test_the_finding_says_what_it_is():
    """An op of its own, a value of 0, nothing expected, in the row of the updated parameter."""
    weight = {Key(name): np.linspace(1, 2, 9) for name in NAMES[:2]}
    rule, findings = frozen(steps=1), []
    for signal, tensors in [
        ("grad_reduced", weight),
        ("param_origin", weight),
        ("param_updated", {**weight, Key("b.weight"): np.linspace(1, 2.1, 9)}),
    ]:
        findings += list(rule.judge(batch_of(tensors, 3, OPS, signal)))
    (finding,) = findings
    assert (finding.signal, finding.key.name, finding.op, finding.value) == ("param_updated", "a.weight", "update", 0.0)
    assert math.isnan(finding.expected)
    assert finding.message.endswith("'update') at step 3, current value 0.0.")


def test_one_that_moves_again_and_stops_again_is_reported_again():
    """Still at steps 5 to 12 and from 20 on."""
    rates = lambda step, name: 0.0 if name == "c.weight" and (5 <= step <= 12 or step >= 20) else 1e-3  # noqa: E731
    assert Training(frozen()).run(40, rates) == [(9, "c.weight"), (24, "c.weight")]


def test_four_steps_are_not_enough():
    """A pause."""
    assert Training(frozen()).run(60, lambda step, name: 0.0 if name == "a.weight" and step % 6 < 4 else 1e-3) == []


def test_one_that_moves_between_samples_is_not_frozen():
    """Two parts that train in turns, of which every tenth step shows the same."""
    rates = lambda step, name: 1e-3 if (step % 2 == 0) == (name in NAMES[:2]) else 0.0  # noqa: E731
    assert Training(frozen()).run(200, rates, sampled=10) == []


@pytest.mark.parametrize(
    "rates",
    [
        lambda step, _: 1e-3 * min(1.0, max(step - 20, 0) / 50),
        lambda step, _: 0.0 if step % 3 else 1e-3,
        lambda step, name: 1e-3 if step < 20 else 1e-9,
        lambda step, name: 1e-3 if step < 20 else 0.0,
        lambda step, name: 1e-3 if step < 20 or name == "a.weight" else 0.0,
    ],
    ids=[
        "warm-up from zero",
        "skipped steps",
        "decay below what float32 shows",
        "rate zero",
        "most are frozen on purpose",
    ],
)
def test_training_that_stands_still_is_silent(rates):
    """If all or most parameters do not move, none is reported."""
    assert Training(frozen()).run(60, rates) == []


def test_a_rate_that_only_small_weights_feel_is_silent():
    """At the end of a decay, weights near 1 stand still in float32 while those near 0.1 move by a ten-millionth."""
    training = Training(frozen())
    training.weights["b.weight"] = np.ones(40, np.float32)
    before = training.weights["a.weight"].copy()
    assert training.run(30, lambda step, _: 5e-9) == []
    assert (training.weights["b.weight"] == 1).all()
    assert (training.weights["a.weight"] != before).any()


def test_numbers_of_other_steps_do_not_count():
    """A gradient, or a parameter before its update, that came with an earlier step and not with this one."""
    still, moved = {Key("a.weight"): np.linspace(1, 2, 9)}, {Key("b.weight"): np.linspace(1, 2, 9)}
    slope = {Key(name): np.ones(9) for name in NAMES[:2]}
    for missing in ("grad_reduced", "param_origin", None):
        rule, found = frozen(steps=1), []
        for step in (0, 1):
            after = still | {Key("b.weight"): np.linspace(1, 2.1 + step, 9)}
            for signal, tensors in [("grad_reduced", slope), ("param_origin", still | moved), ("param_updated", after)]:
                skipped = signal == ("param_updated" if step == 0 else missing)
                found += [] if skipped else rule.judge(batch_of(tensors, step, OPS, signal))
        assert [f.step for f in found] == ([1] if missing is None else [])


def test_without_a_gradient_a_parameter_may_stand_still():
    """Frozen on purpose: no gradient row; or a gradient of exactly 0; or no gradients collected at all."""
    assert Training(frozen()).run(20, all_but("b.weight"), gradients=NAMES[:1] + NAMES[2:]) == []
    assert Training(frozen()).run(20, all_but("b.weight"), gradients=()) == []
    assert Training(frozen()).run(20, all_but("b.weight"), scale=0.0) == []


def test_a_norm_alone_does_not_suffice():
    """Nor do extremes alone: an embedding moves in some rows only."""
    assert Training(frozen(ops=("norm", "mean")), ("norm", "mean")).run(20, all_but("b.weight")) == []
    assert Training(frozen(ops=("min", "max")), ("min", "max")).run(20, all_but("b.weight")) == []
    assert Training(frozen(ops=("max", "mean")), ("max", "mean")).run(20, all_but("b.weight")) == [(4, "b.weight")]


def test_a_parameter_that_is_not_finite_is_left_to_another_rule():
    """NaN stays NaN, and is no standstill; the others are judged."""
    training = Training(frozen())
    training.weights["a.weight"][3] = math.nan
    assert training.run(20, all_but("b.weight")) == [(4, "b.weight")]


class Watched(Training):
    """Training whose batches have the step's update."""

    outcome, rate = "applied", 1e-3

    def judged(self, signal, tensors):
        rows = {Key(name): tensor.astype(np.float64) for name, tensor in tensors.items()}
        update = Update(self.outcome, rate=self.rate)
        batch = replace(batch_of(rows, self.step, self.ops, signal), update=update)
        return [(f.step, f.key.name) for f in self.rule.judge(batch)]


def test_nothing_moves_though_the_rate_is_above_0():
    """All parameters are named once, at the fifth step."""
    found = Watched(frozen()).run(20, lambda step, name: 0.0)
    assert found == [(4, name) for name in NAMES]


@pytest.mark.parametrize(
    ("outcome", "rate"), [("skipped", 1e-3), ("unknown", 1e-3), ("applied", 0.0), ("applied", math.nan)]
)
def test_nothing_moves_for_a_reason(outcome, rate):
    """A skipped update, a rate of 0, and what is not known are none."""
    training = Watched(frozen())
    training.outcome, training.rate = outcome, rate
    assert training.run(20, lambda step, name: 0.0) == []


def test_nothing_moves_visibly_at_a_tiny_rate():
    """In the first steps of a long warm-up updates are below the digits of files."""
    training = Watched(frozen())
    training.rate = 1e-9
    assert training.run(20, lambda step, name: 1e-9) == []


@pytest.mark.parametrize(("factor", "found"), [(1e-4, []), (1e-2, [(34, "b.weight")])])
def test_a_part_that_has_converged_is_not_driven(factor, found):
    """A gradient far smaller than it was moves nothing that shows: a critic whose rewards have ceased."""

    class Converging(Watched):
        def judged(self, signal, tensors):
            if signal == "grad_reduced" and self.step >= 30:
                tensors = tensors | {"b.weight": factor * tensors["b.weight"]}
            return super().judged(signal, tensors)

    assert Converging(frozen()).run(40, all_but("b.weight", 30)) == found


@pytest.mark.parametrize(("factor", "found"), [(1e-7, []), (1e-4, [(4, "b.weight")])])
def test_gradients_that_cancel_do_not_drive(factor, found):
    """The rounding that is left of a key's bias, or of one before a normalisation, is far below the other gradients."""

    class Cancelling(Watched):
        def judged(self, signal, tensors):
            if signal == "grad_reduced":
                tensors = tensors | {"b.weight": factor * tensors["b.weight"]}
            return super().judged(signal, tensors)

    assert Cancelling(frozen()).run(10, all_but("b.weight")) == found
