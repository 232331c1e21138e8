"""Steps whose update a gradient scaler has skipped: no evidence until scaling has failed."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from probe.core.records import Batch, Outcome, Update
from probe.core.rules.dead import AnomalyDead
from probe.core.rules.evaluate import find
from probe.core.rules.nan import AnomalyNan
from probe.core.rules.skipped import AT_FIRST, IN_TRAINING
from tests.core.rules.rule_batches import OPS, W, batch_of

BROKEN = np.array([1.0, np.inf, np.nan])


def batch(step: int, update: Update, signal: str = "grad_reduced", values: np.ndarray = BROKEN) -> Batch:
    return replace(batch_of({W: values}, step, ("norm",), signal), update=update)


def rule() -> AnomalyNan:
    return AnomalyNan(SimpleNamespace(threshold=None), 0, ("norm",))


def steps_with_findings(updates: list[Update], signal: str = "grad_reduced") -> list[int]:
    judge = rule()
    return [step for step, update in enumerate(updates) if find([judge], [batch(step, update, signal)])]


def skipped(number: int, begun: bool) -> list[Update]:
    return [Update("skipped", skips, begun) for skips in range(1, number + 1)]


@pytest.mark.parametrize(("begun", "limit"), [(True, IN_TRAINING), (False, AT_FIRST)])
def test_gradients_of_skipped_steps_count_once_scaling_has_failed(begun: bool, limit: int) -> None:
    """At the start as many are skipped as it takes to halve the largest scale in use to 1; later a few."""
    assert steps_with_findings(skipped(limit + 2, begun)) == [limit - 1, limit, limit + 1]


@pytest.mark.parametrize("signal", ["actv", "actv_grad", "grad_unreduced", "other", "grad_reduced"])
def test_all_values_of_a_skipped_step_are_left_out(signal: str) -> None:
    """Of the forward, the backward, the exchange and the reduced gradients."""
    assert steps_with_findings(skipped(1, True), signal) == []


@pytest.mark.parametrize("signal", ["param_origin", "param_updated", "exp_avg"])
def test_parameters_and_state_are_always_evidence(signal: str) -> None:
    """A skipped update leaves them as they were: NaN there stays."""
    assert steps_with_findings(skipped(1, True), signal) == [0]


@pytest.mark.parametrize("outcome", ["applied", "unknown", "partial"])
def test_other_steps_are_judged(outcome: Outcome) -> None:
    """Also those of which only a device, or nobody, knows the outcome."""
    assert steps_with_findings([Update(outcome)]) == [0]


def test_a_skipped_step_is_not_remembered() -> None:
    """A rule that waits for several samples in a row counts those that are evidence alone, and loses none."""
    dead = AnomalyDead(SimpleNamespace(limit=0.999, steps=3), 0, ("zeros",))
    key = W._replace(part="output")
    found = []
    for step in range(6):
        update = Update("skipped", 1) if step == 2 else Update("applied")
        zeros = replace(batch_of({key: np.zeros(64)}, step, (*OPS, "zeros"), "actv"), update=update)
        found += [finding.step for finding in find([dead], [zeros])]
    assert found == [3]
