"""Several rules at once, the causal order of what they find, and the first cause."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace

import numpy as np
import pytest

from probe.core.records import Batch, Finding, Key
from probe.core.rules import factory
from probe.core.rules.causal_order import causal_order
from probe.core.rules.evaluate import diagnose, explain, find, module_of

nan = math.nan


def finding(signal, name="fc", order=0, step=3, micro_stepped=False, **changes):
    micro_step, part = changes.pop("micro_step", 0), changes.pop("part", "")
    values = {"rule": "AnomalyNan", "op": "norm", "value": nan, "expected": nan, "rank": 0, "message": "", **changes}
    key = Key(name, part, micro_step)
    return Finding(signal=signal, key=key, step=step, order=order, micro_stepped=micro_stepped, **values)


def batch(signal, step, sumsq, order=0, micro_stepped=False):
    columns = {"sumsq": np.array([sumsq], dtype=float)}
    return Batch(signal, step, (Key("fc"),), ((16,),), ("f",), np.array([order]), columns, micro_stepped)


def rules(*names):
    spike = {"window": 32, "warm_up": 10, "min_ratio": 20.0, "cool_down": 10, "ops": ["norm"], "both_sides": False}
    spike["joint"] = False
    thresholds = {"AnomalyNan": 1e3, "AnomalyTurbulence": 0.5, "AnomalySpike": 12.0}
    return [factory(name)(SimpleNamespace(**spike, threshold=thresholds[name]), 0, ["norm"]) for name in names]


IN_ORDER = [
    finding("actv_grad", step=2, order=900, micro_stepped=True),
    finding("param_updated", step=2, order=1000),
    finding("param_origin", order=5),
    finding("param_origin", order=6),
    finding("actv", order=30, micro_stepped=True),
    finding("actv", order=31, micro_stepped=True),
    finding("grad_unreduced", order=40, micro_stepped=True),
    finding("actv_grad", order=41, micro_stepped=True),
    finding("actv", order=20, micro_stepped=True, micro_step=1),
    finding("actv_grad", order=7, micro_stepped=True, micro_step=1),
    finding("grad_unreduced", order=1),
    finding("grad_reduced", order=0),
    finding("exp_avg", order=2),
    finding("exp_avg_sq", order=3),
    finding("param_updated", order=1),
    finding("param_origin", step=4),
]


def test_findings_sort_by_cause():
    """Step; weights; micro step by micro step forward, backward, call order; then what there is once a step."""
    shuffled = random.Random(5).sample(IN_ORDER, len(IN_ORDER))
    assert sorted(shuffled, key=causal_order) == IN_ORDER
    assert diagnose(shuffled) == IN_ORDER[0]


def test_nothing_found_is_no_diagnosis():
    """A healthy run has no first bad thing."""
    assert diagnose([]) is None


@pytest.mark.parametrize(
    ("order", "reported"),
    [(("AnomalyNan", "AnomalyTurbulence"), "AnomalyNan"), (("AnomalyTurbulence", "AnomalyNan"), "AnomalyTurbulence")],
)
def test_the_first_rule_that_matches_a_value_is_reported(order, reported):
    """A norm of 1,000,000 after 1 is beyond the threshold and strays from its mean: one finding."""
    configured = rules(*order)
    assert not find(configured, [batch("grad_reduced", 0, 1.0)])
    assert [f.rule for f in find(configured, [batch("grad_reduced", 1, 1e12)])] == [reported]


def test_nan_does_not_hide_a_later_spike():
    """NaN is AnomalyNan's; the spike after it is AnomalySpike's, against the history before the NaN."""
    configured = rules("AnomalyNan", "AnomalySpike")
    series = [1.0] * 12 + [nan, 500.0]
    found = [f for step, value in enumerate(series) for f in find(configured, [batch("actv", step, value**2)])]
    assert [(f.rule, f.step) for f in found] == [("AnomalyNan", 12), ("AnomalySpike", 13)]


def test_one_step_comes_in_causal_order_whatever_the_order_of_batches():
    """The forward pass of a step stands before its reduced gradients."""
    batches = [
        batch("param_updated", 0, nan),
        batch("grad_reduced", 0, nan),
        batch("actv_grad", 0, nan, 9, micro_stepped=True),
        batch("actv", 0, nan, 8, micro_stepped=True),
    ]
    signals = ["actv", "actv_grad", "grad_reduced", "param_updated"]
    assert [f.signal for f in find(rules("AnomalyNan"), batches)] == signals


class Broken:
    """A rule with a mistake in it."""

    def judge(self, batch):
        raise RuntimeError(f"cannot judge {batch.signal}")


def test_a_rule_that_fails_takes_no_other_down():
    """Its exception is passed to ``failed``; without ``failed`` it is raised."""
    told = []
    configured = [Broken(), *rules("AnomalyNan")]
    found = find(configured, [batch("actv", 0, nan)], failed=lambda rule, error: told.append((rule, str(error))))
    assert [f.rule for f in found] == ["AnomalyNan"]
    assert told == [(configured[0], "cannot judge actv")]
    with pytest.raises(RuntimeError, match="cannot judge"):
        find(configured, [batch("actv", 0, nan)])


def test_modules_of_findings():
    """The module of an activation is its own; a parameter belongs to the name before its last dot."""
    assert module_of(finding("actv", "layers.1.mlp", part="output_0")) == "layers.1.mlp"
    assert module_of(finding("grad_reduced", "layers.1.mlp.weight")) == "layers.1.mlp"
    assert module_of(finding("param_origin", "scale")) == ""
    assert module_of(finding("actv", "", part="input")) == ""


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (
            finding("actv", "fc", part="output", micro_stepped=True, micro_step=1, value=math.inf),
            "Inf at step 3, micro step 1: norm of fc.output (module inputs and outputs) in module fc is inf.",
        ),
        (
            finding("param_origin", "l.fc.weight", op="nans", value=2.0),
            "NaN at step 3: nans of l.fc.weight (parameter before the update) in module l.fc is 2.",
        ),
        (
            finding("m", "b", rule="AnomalySpike", value=5000.0, expected=2.5),
            "Spike at step 3: norm of b (optimizer state m) in the root module is 5000, 2000 times the expected 2.5.",
        ),
        (
            finding("param_updated", "fc.b", rule="AnomalyTurbulence", op="mean", value=-3.0, expected=1.0),
            "Drift at step 3: mean of fc.b (parameter after the update) in module fc is -3, 3 times the expected 1.",
        ),
        (
            finding("m", "w", op="max", value=8.0, expected=2.0),
            "Excessive value at step 3: max of w (optimizer state m) in the root module is 8, 4 times the threshold 2.",
        ),
    ],
)
def test_findings_in_words(found, sentence):
    """Kind, step, op, row, module and expected value."""
    assert explain(found) == sentence
