"""``AnomalyThreshold``: limits of the user's own, where the user wants them."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from probe.core.config.errors import ConfigError
from probe.core.config.load import load
from probe.core.naming import COLUMNS
from probe.core.records import Key
from probe.core.rules.threshold import AnomalyThreshold
from tests.core.rules.rule_batches import OPS, W, batch_of, norms


def threshold(above=None, below=None, ops=("norm",), signals=(), names=()):
    args = SimpleNamespace(above=above, below=below, ops=ops, signals=signals, names=names)
    return AnomalyThreshold(args, 0, OPS)


def found(rule, tensors, **options):
    return [(f.key.name, f.op, f.value, f.expected) for f in rule.judge(batch_of(tensors, **options))]


def test_values_have_their_sign_and_unit():
    """A mean of -3 is below -2 and not above 2; a maximum of 2 is not above 2."""
    rule = threshold(above=2.0, below=-2.0, ops=("mean", "max"))
    assert found(rule, {W: np.array([-3.0, -3.0])}) == [
        ("fc.weight", "mean", -3.0, -2.0),
        ("fc.weight", "max", -3.0, -2.0),
    ]
    assert found(rule, {W: np.array([2.0, 2.0])}) == []
    assert found(rule, {W: np.array([2.0, 2.5])}) == [("fc.weight", "mean", 2.25, 2.0), ("fc.weight", "max", 2.5, 2.0)]


def test_inf_is_beyond_any_limit_and_nan_beyond_none():
    """NaN is for another rule."""
    assert found(threshold(above=1e300), {W: np.array([math.inf])}) == [("fc.weight", "norm", math.inf, 1e300)]
    assert found(threshold(above=0.0, below=1.0), {W: np.array([math.nan])}) == []


def test_only_what_is_named_is_judged():
    """Signals by their names, rows by patterns of the names in files."""
    rule = threshold(above=1.0, signals=("actv",), names=("layers.*.out*", "fc.input"))
    keys = [Key("layers.0.mlp", "output"), Key("fc", "input"), Key("fc", "output"), Key("my.layers.0.mlp", "output")]
    tensors = {key: np.array([5.0]) for key in keys}
    assert [name for name, *_ in found(rule, tensors, signal="actv")] == ["layers.0.mlp", "fc"]
    assert found(rule, tensors, signal="actv_grad") == []
    assert len(found(rule, {keys[1]: np.array([5.0])}, signal="actv")) == 1  # other keys than before


def test_every_step_is_reported_and_says_the_limit():
    """There is no memory."""
    rule = threshold(below=1.0)
    messages = [f.message for step in range(3) for f in rule.judge(batch_of({W: np.array([0.5])}, step))]
    assert len(messages) == 3
    assert messages[0].endswith("at step 0, current value 0.5, limit below 1.0.")


@pytest.mark.parametrize(
    ("signal", "column"), [(signal, column) for signal, columns in COLUMNS.items() for column in columns]
)
def test_columns_that_are_no_ops_have_limits(signal, column):
    """Those of features and of collectives, where they are recorded."""
    rule = threshold(above=1.0, ops=(column, "norm"))
    batch = norms({W: 0.5}, signal=signal, extra={column: np.array([3.0])})
    assert [(f.op, f.value) for f in rule.judge(batch)] == [(column, 3.0)]
    assert found(rule, {W: np.array([0.5])}) == []


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ({}, "expected a number, here or as above"),
        ({"above": None}, "expected a number, here or as above"),
        ({"above": "high"}, "expected a number"),
        ({"above": 1, "ops": ["norms"]}, "did you mean norm?"),
        ({"above": 1, "ops": ["entropi"]}, "did you mean entropy?"),
        ({"above": 1, "ops": ["learnin_rate"]}, "did you mean learning_rate?"),
        ({"above": 1, "ops": []}, "expected a list of names"),
    ],
)
def test_wrong_arguments_are_refused(args, problem):
    """At least one limit, and numbers that are recorded."""
    with pytest.raises(ConfigError) as caught:
        load({"alert": {"rules": [{"rule_name": "AnomalyThreshold", "args": args}]}})
    assert problem in str(caught.value)
