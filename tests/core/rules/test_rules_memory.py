"""Memory of rules: kept through a resumed run in a new process, wiped for steps that a rollback takes back."""

from __future__ import annotations

import numpy as np
import pytest

from probe.core.config.schema import DEFAULT_RULES, RULE_ARGS
from probe.core.naming import COLUMNS
from probe.core.records import Batch, Key
from probe.core.rules import factory

OPS = ("norm", "min", "max", "zeros")
KEYS = tuple(Key(f"layers.{n}.weight") for n in range(6))
OUTPUTS = tuple(Key(f"layers.{n}", "output") for n in range(6))
BEGIN = 30
"""First step of the resumed run."""


def rule_of(name):
    """A rule with its defaults."""
    return factory(name)(RULE_ARGS[name](), 0, OPS)


def step_of(step, broken):
    """A healthy step, or one in which layer 2 is dead, its gradient gone, its parameter frozen, its attention and its
    router collapsed, one element of its output a peak, another's gradient gone wild."""
    random = np.random.default_rng([step, 5])
    gradient, weight = random.normal(1, 0.1, 6), np.arange(1.0, 7.0)
    before, after = weight + 1e-3 * step, weight + 1e-3 * (step + 1)
    zeros = np.full(6, 0.5)
    if broken:
        gradient[2], zeros[2], before[2], after[2] = 0.0, 1.0, 9.0, 9.0
        gradient[4] *= 1e5
    driven = np.where(
        np.arange(6) == 2, 1.0, gradient
    )  # of the frozen parameter; the vanished gradient is an activation's
    largest = np.where((np.arange(6) == 2) & broken, 0.5, 0.02)
    yield batch("actv", step, OUTPUTS, np.ones(6), zeros, (100, 100), largest)
    yield batch("actv_grad", step, OUTPUTS, gradient, np.zeros(6))
    yield batch("grad_reduced", step, KEYS, driven, np.zeros(6))
    yield batch("param_origin", step, KEYS, before, np.zeros(6))
    yield batch("param_updated", step, KEYS, after, np.zeros(6))
    yield feature("attention_hook", step, [0.1 if broken else 3.0, 0.5])
    yield feature("moe_router_logit_hook", step, [1.0, *([10.0, 3.0, 0.0, 1.0] if broken else [2.0, 0.5, 0.5, 0.2])])


def batch(signal, step, keys, norms, zeros, shape=(10, 10), largest=0.2):
    columns = {"sumsq": norms**2, "min": -norms / 50, "max": norms * largest, "below": shape[0] * shape[1] * zeros}
    return Batch(signal, step, keys, (shape,) * 6, ("torch.float32",) * 6, np.arange(6), columns)


def feature(signal, step, row):
    """One row of a feature, of a hundred tokens and ten experts."""
    columns = {name: np.array([value]) for name, value in zip(COLUMNS[signal], row, strict=True)}
    return Batch(signal, step, (Key("layers.2.core"),), ((100, 10),), ("torch.float32",), np.arange(1), columns)


def judged(rule, steps, broken_from):
    """Step, signal, name and op of every finding."""
    return [
        (finding.step, finding.signal, finding.key.name, finding.op)
        for step in steps
        for each in step_of(step, step >= broken_from)
        for finding in rule.judge(each)
    ]


REMEMBERING = [name for name in DEFAULT_RULES if name != "AnomalyNan"]


@pytest.mark.parametrize("name", REMEMBERING)
def test_a_resumed_run_finds_what_an_uninterrupted_one_finds(name):
    """A rule in a new process, shown the steps before the first of its own, goes on as if nothing had happened."""
    whole = judged(rule_of(name), range(60), BEGIN + 2)
    assert whole
    assert min(step for step, *_ in whole) >= BEGIN
    resumed = rule_of(name)
    judged(resumed, range(BEGIN), BEGIN + 2)
    assert judged(resumed, range(BEGIN, 60), BEGIN + 2) == whole


@pytest.mark.parametrize("name", ["AnomalySpike", "AnomalyVanish"])
def test_without_the_earlier_steps_it_would_not_be_found(name):
    """So the memory is what counts: two samples of its own are no history."""
    assert judged(rule_of(name), range(BEGIN, 60), BEGIN + 2) == []


@pytest.mark.parametrize("name", REMEMBERING)
def test_a_run_that_breaks_as_it_stops_is_caught_after_it_resumes(name):
    """A run of bad samples before the end is continued after the interruption, not begun again."""
    whole = judged(rule_of(name), range(60), BEGIN - 3)
    resumed = rule_of(name)
    assert judged(resumed, range(BEGIN), BEGIN - 3) + judged(resumed, range(BEGIN, 60), BEGIN - 3) == whole


@pytest.mark.parametrize(("first", "second"), [(5, 20), (30, 10)], ids=["breaks later", "is broken already"])
@pytest.mark.parametrize("name", REMEMBERING)
def test_a_rollback_begins_anew(name, first, second):
    """Back at step 10, a rule finds what a fresh one finds, whatever broke in the steps that are taken back."""
    back, fresh = rule_of(name), rule_of(name)
    judged(back, range(40), first)
    assert judged(back, range(10, 45), second) == judged(fresh, range(10, 45), second)
