"""``AnomalyDead``: outputs that are zero, and zeros that are nothing to worry about."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from probe.core.records import Batch, Key
from probe.core.rules.dead import AnomalyDead

OUT = Key("relu", "output")


def dead(ops=("norm", "zeros"), **changes):
    return AnomalyDead(SimpleNamespace(**{"limit": 0.999, "steps": 5, **changes}), 0, ops)


def zeros(fraction, step, key=OUT, shape=(8, 250), signal="actv", dtype="torch.float32"):
    count = float(np.prod(shape))
    moments = {"below": np.array([fraction * count]), "sumsq": np.array([(1 - fraction) * count])}
    return Batch(signal, step, (key,), (shape,), (dtype,), np.zeros(1, np.int64), moments, True)


def steps_found(rule, series, start=0, **options):
    return [f.step for step, value in enumerate(series, start) for f in rule.judge(zeros(value, step, **options))]


def test_an_output_that_dies_is_reported_once():
    """Half of it, then all, then 999 of 1,000 for good."""
    rule = dead()
    assert steps_found(rule, [0.5] * 10 + [1.0, 0.9995] * 10) == [14]
    (finding,) = (f for step in range(30, 36) for f in [*dead_again(rule, step)])
    assert (finding.key, finding.op, finding.value, finding.expected) == (OUT, "zeros", 1.0, 0.999)
    assert finding.message.endswith("current value 1.0, limit 0.999.")


def dead_again(rule, step):
    """One living sample, then zeros."""
    return rule.judge(zeros(0.5 if step == 30 else 1.0, step))


def test_an_output_that_never_lived_is_reported_if_all_of_it_is_zero():
    """All zero from the start is dead; nearly all from the start is a sparse code."""
    assert steps_found(dead(), [1.0] * 20) == [4]
    assert steps_found(dead(), [0.9996] * 20) == []
    assert steps_found(dead(), [0.2] * 4 + [0.9996] * 20) == []
    assert steps_found(dead(), [0.2] * 5 + [0.9996] * 20) == [9]


def test_four_samples_are_not_enough():
    """What starts at zero and moves, as an adapter does; a layer that chance leaves out."""
    assert steps_found(dead(), [1.0] * 4 + [0.0] * 20) == []
    assert steps_found(dead(), ([0.5] * 6 + [1.0] * 4) * 10) == []


@pytest.mark.parametrize(
    "healthy",
    [
        {"key": Key("relu", "input")},
        {"signal": "actv_grad"},
        {"signal": "grad_reduced", "key": Key("embedding.weight")},
        {"signal": "param_origin", "key": Key("fc.bias")},
        {"dtype": "torch.int64"},
        {"dtype": "torch.bool"},
        {"shape": (3,)},
        {"shape": ()},
        {"shape": (0, 4)},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_zeros_elsewhere_are_not_judged(healthy):
    """Inputs, gradients, parameters, masks, small outputs, and outputs without elements."""
    assert steps_found(dead(), [0.5] * 10 + [1.0] * 20, **healthy) == []


def test_without_the_op_nothing_is_judged():
    """The rule needs the op zeros; without it, it is silent and does not fail."""
    assert steps_found(dead(ops=("norm",)), [1.0] * 10) == []
