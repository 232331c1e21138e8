"""Rules where histograms and quantiles are among what is collected, or all that is."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from probe.core.histogram import BINS, HISTOGRAM, INFINITE, NAN, ZERO
from probe.core.records import Batch, Key
from probe.core.rules.frozen import AnomalyFrozen
from probe.core.rules.nan import AnomalyNan
from tests.core.rules.rule_batches import batch_of

nan, inf = math.nan, math.inf


def distributed(tensors: dict[Key, Any], ops: tuple[str, ...], signal: str = "exp_avg", step: int = 0) -> Batch:
    """Batch with a histogram whose bins of zero, NaN, Inf and ones are filled."""
    rows = np.zeros((len(tensors), BINS))
    for row, x in zip(rows, tensors.values(), strict=True):
        for at, marked in (
            (ZERO, x == 0),
            (NAN, np.isnan(x)),
            (ZERO + INFINITE, x == inf),
            (ZERO - INFINITE, x == -inf),
            (ZERO + 66, (x >= 1) & (x < 2)),
        ):
            row[at] = marked.sum()
        assert row.sum() == x.size, "this test knows these bins alone"
    plain = tuple(op for op in ops if op not in (HISTOGRAM, "q50"))
    batch = batch_of(tensors, step, plain, signal)
    return replace(batch, columns={**batch.columns, HISTOGRAM: rows})


def judged(tensors: dict[Key, Any], ops: tuple[str, ...], threshold: float | None = None, **more: Any) -> list[Any]:
    rule = AnomalyNan(SimpleNamespace(threshold=threshold), 0, ops)
    return [(f.key.name, f.op, f.value) for f in rule.judge(distributed(tensors, ops, **more))]


def test_counts_of_a_histogram_are_no_magnitudes() -> None:
    """A thousand zeros are not beyond a threshold of a hundred."""
    zeros = {Key("zeros"): np.zeros(1000), Key("ones"): np.ones(1000)}
    assert judged(zeros, ("norm", HISTOGRAM), 100.0) == []
    assert judged(zeros, ("norm", HISTOGRAM), 20.0) == [("ones", "norm", math.sqrt(1000))]


@pytest.mark.parametrize("ops", [(HISTOGRAM,), ("q50",), (HISTOGRAM, "q50")])
def test_what_is_not_finite_is_found_in_a_histogram(ops: tuple[str, ...]) -> None:
    """If only histograms are configured, NaN is reported by its count."""
    tensors = {
        Key("a"): np.array([1.0, 1, 1, nan, nan]),
        Key("b"): np.array([1.0, 1, 1, inf, -inf]),
        Key("c"): np.ones(3),
    }
    assert judged(tensors, ops) == [("a", "nans", 2.0), ("b", "infs", 2.0)]


def test_beside_other_numbers_the_histogram_says_nothing_new() -> None:
    """One element, one finding an op."""
    assert judged({Key("a"): np.array([1.0, nan])}, ("norm", HISTOGRAM)) == [
        ("a", "norm", pytest.approx(nan, nan_ok=True))
    ]


def test_a_quantile_that_is_not_finite_is_found() -> None:
    """If half of the elements are infinite, so is the median."""
    assert judged({Key("a"): np.array([1.0, inf, inf])}, ("max", "q50")) == [("a", "max", inf), ("a", "q50", inf)]
    assert judged({Key("a"): np.array([1.0, 1.5, 1.5])}, ("max", "q50"), 1.1) == [
        ("a", "max", 1.5),
        ("a", "q50", pytest.approx(math.sqrt(2))),
    ]


def test_an_additive_mask_is_known_by_its_histogram() -> None:
    """Zeros and minus infinities, given to a module."""
    tensors = {
        Key("core", "input_1"): np.array([0.0, -inf]),
        Key("fc", "output"): np.array([0.0, -inf]),
        Key("act", "input"): np.array([1.0, 0.0, -inf]),
    }
    assert judged(tensors, (HISTOGRAM,), signal="actv") == [("fc", "infs", 1.0), ("act", "infs", 1.0)]


def test_frozen_parameters_are_found_with_quantiles_among_the_ops() -> None:
    """They are none of the numbers that show whether a parameter moves."""
    rule, found = AnomalyFrozen(SimpleNamespace(steps=5), 0, ("norm", "min", "max", "q50")), []
    ops = ("norm", "min", "max", "q50")
    for step in range(8):
        before = {Key(name): np.full(4, 1 + step / 16) for name in "abc"} | {Key("still"): np.ones(4)}
        after = {key: x if key.name == "still" else x + 1 / 16 for key, x in before.items()}
        for signal, tensors in (
            ("grad_reduced", dict.fromkeys(before, np.ones(4))),
            ("param_origin", before),
            ("param_updated", after),
        ):
            found += [(f.step, f.key.name) for f in rule.judge(distributed(tensors, ops, signal, step))]
    assert found == [(4, "still")]
