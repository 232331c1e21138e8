"""Rules that judge all signals of a step in one pass find what they find in one signal after the other."""

from __future__ import annotations

import math
import random
from collections import defaultdict, deque
from statistics import median
from types import SimpleNamespace

import numpy as np
import pytest

from probe.core.records import Key
from probe.core.rules.evaluate import find
from probe.core.rules.nan import AnomalyNan
from probe.core.rules.spike import AnomalySpike
from tests.core.rules.rule_batches import OPS, batch_of, norms

SIGNALS = ("actv", "grad_unreduced", "param_origin", "exp_avg_sq")
SPIKE = {"window": 6, "warm_up": 4, "threshold": 3.0, "min_ratio": 3.0, "cool_down": 3, "joint": False}
JOINT = SPIKE | {"joint": True, "warnings_per_10000_steps": 1.0}


def rules_of(seed, ops=OPS):
    threshold = [None, 50.0][seed % 2]
    judged = tuple(op for op in ("norm", "min", "max") if op in ops)
    return [
        AnomalySpike(SimpleNamespace(**JOINT, ops=judged), 0, ops),
        AnomalyNan(SimpleNamespace(threshold=threshold), 0, ops),
    ]


class OneByOne:
    """Rule that is asked for one batch after the other."""

    def __init__(self, rule):
        self.judge = rule.judge


def random_step(numbers, step):
    """Batches of a step in which values leap, vanish, are missing, infinite or NaN, in the order of training."""
    batches = []
    for signal in SIGNALS:
        tensors = {}
        for name in "abcdef":
            if numbers.random() < 0.9:
                values = np.array([numbers.gauss(0, 1) for _ in range(5)])
                values *= numbers.choice([1.0] * 12 + [0.0, 1e-3, 30.0, 1e3])
                if numbers.random() < 0.02:
                    values[numbers.randrange(5)] = numbers.choice([math.nan, math.inf, -math.inf])
                tensors[Key(name, "output" if signal == "actv" else "")] = values
        if tensors:
            batches.append(batch_of(tensors, step, signal=signal))
    return batches


@pytest.mark.parametrize("seed", range(6))
def test_a_step_in_one_pass_has_the_findings_of_its_signals_one_by_one(seed):
    """Leaps, zeros, NaN, infinities, missing keys and steps that go back: equal findings, in the same order."""
    numbers = random.Random(seed)
    together, apart = rules_of(seed), [OneByOne(rule) for rule in rules_of(seed)]
    found = 0
    for step in [*range(40), *range(30, 60)]:
        batches = random_step(numbers, step)
        expected = find(apart, batches)
        assert repr(find(together, batches)) == repr(expected)
        found += len(expected)
    assert found > 20


@pytest.mark.parametrize("seed", range(4))
def test_norms_that_spike_are_those_of_the_definition(seed):
    """Hampel's identifier by the standard library over a deque, for every norm of 30 tensors and 150 steps."""
    numbers = random.Random(seed)
    rule = AnomalySpike(SimpleNamespace(**SPIKE, ops=("norm",)), 0, ("norm",))
    windows, streak, silent = defaultdict(lambda: deque(maxlen=SPIKE["window"])), defaultdict(int), defaultdict(int)
    reported = 0
    for step in range(150):
        values = {Key(f"w{n}"): math.exp(numbers.gauss(n % 5, 0.3)) for n in range(30)}
        for key in values:
            if numbers.random() < 0.06:
                values[key] *= numbers.choice([0.01, 0.1, 8.0, 100.0])
        expected = set()
        for key, value in values.items():
            x, window = math.log(value), windows[key]
            middle = median(window) if window else 0.0
            spread = median(abs(y - middle) for y in window) if window else 0.0
            limit = max(math.log(SPIKE["min_ratio"]), SPIKE["threshold"] * 1.4826 * spread)
            spikes = len(window) >= SPIKE["warm_up"] and abs(x - middle) > limit
            if spikes and not silent[key]:
                expected.add(key)
                silent[key] = SPIKE["cool_down"]
            else:
                silent[key] = max(silent[key] - 1, 0)
            streak[key] = streak[key] + 1 if spikes else 0
            if settled := streak[key] >= SPIKE["cool_down"]:
                window.clear()
                streak[key] = 0
            if not spikes or settled:
                window.append(float(np.float32(x)))
        found = {finding.key for finding in find([rule], [norms(values, step)])}
        assert found == expected, step
        reported += len(found)
    assert reported > 50


def test_a_rule_that_fails_loses_the_step_and_no_other_rule_does():
    """The rule that judges a step in one pass fails in it: counted once, and the others' findings stay."""

    class Failing(AnomalyNan):
        def judge_step(self, batches):
            raise ValueError("cannot judge")

    failed = []
    rules = [Failing(SimpleNamespace(threshold=None), 0, OPS), AnomalyNan(SimpleNamespace(threshold=None), 0, OPS)]
    bad = {Key("a"): np.array([1.0, math.nan])}
    batches = [batch_of(bad, 3, signal=signal) for signal in SIGNALS[1:]]
    found = find(rules, batches, lambda rule, error: failed.append((rule, str(error))))
    assert failed == [(rules[0], "cannot judge")]
    assert {finding.signal for finding in found} == set(SIGNALS[1:])


def test_no_batches_have_no_findings():
    """A step without any row."""
    assert find(rules_of(0), []) == []


def test_two_batches_of_one_signal_are_judged_one_after_the_other():
    """Parts of one signal share the history of their keys: the second value of a key meets the first."""
    rule = AnomalySpike(SimpleNamespace(**SPIKE, ops=("norm",)), 0, ("norm",))
    for step in range(2):
        assert find([rule], [norms({Key("w"): 1.0}, step), norms({Key("w"): 1.0}, step)]) == []
    assert [f.value for f in find([rule], [norms({Key("w"): 100.0}, 2), norms({Key("w"): 1.0}, 2)])] == [100.0]


def test_signals_that_are_wrong_in_different_numbers_are_all_reported():
    """An infinity in one signal, found by its minimum alone, and a NaN in another, found by its count."""
    rule = AnomalyNan(SimpleNamespace(threshold=None), 0, ("min", "nans"))
    infinite, missing = {Key("a"): np.array([1.0, -math.inf])}, {Key("a"): np.array([1.0, math.nan])}
    batches = [batch_of(infinite, 3, signal="actv"), batch_of(missing, 3, signal="param_origin")]
    assert {(f.signal, f.op) for f in find([rule], batches)} == {
        ("actv", "min"),
        ("param_origin", "min"),
        ("param_origin", "nans"),
    }
