"""The account of a run: what it claims to have looked at."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from probe.core.checks.check import CheckFinding
from probe.core.config.load import load
from probe.core.control.armed_collection import CollectedSteps
from probe.core.hindsight.onset import Onset
from probe.core.records import Batch, Finding, Key, Snapshot, Update
from probe.core.run_state.rules import RunFinding, RunStep
from probe.core.sentinel.run_account import RunAccount
from probe.core.sentinel.watch_summary import WatchSummary, report_of


def account(**settings: Any) -> RunAccount:
    return RunAccount(load({"wg_distribution": True, **settings}), rank=0, number=0, first=10)


def summary(of: RunAccount, step: int = 30) -> WatchSummary:
    return of.summary(step, "out/rank0", {}, True)


def rows(step: int, *findings: Finding) -> Snapshot:
    return Snapshot(step, 0, 0.0, (), (), findings=findings)


def nan(step: int) -> Finding:
    return Finding("AnomalyNan", "grad_reduced", Key("head.bias"), "nans", 1.0, 0.0, step, 0, 0, "", False)


def test_rows_that_no_rule_judges_were_not_looked_at() -> None:
    """They were recorded, which the line says."""
    judged, unjudged = account(), account(alert={"rules": []})
    for each in (judged, unjudged):
        each.rows(rows(10))
    assert summary(judged).looked.at == ("gradients in 1 of 20 steps",)
    looked = summary(unjudged).looked
    assert looked.at == ()
    assert looked.not_at[0] == "gradients (recorded, and judged by no rule)"
    assert report_of([summary(unjudged)]).verdict.line().startswith("nothing was looked at; not looked at: gradients")


def test_a_captured_graph_was_not_looked_at() -> None:
    """Hooks that a capture calls are no failures; these are counted without them."""
    faults = {"hooks called while a CUDA graph was captured": 21, "rule AnomalyNan": 2}
    captured = account().summary(30, "out/rank0", faults, True)
    assert (captured.faults, captured.looked.not_at[-1]) == (2, "anything in a CUDA graph, nor the replays of one")
    assert "CUDA" not in str(account().summary(30, "out/rank0", {}, True))


def test_a_loss_that_was_not_seen_was_not_looked_at() -> None:
    """One that the program logs is, if a rule judges it; its last finite step stays known."""
    run = account()
    assert "the loss" in summary(run).looked.not_at
    for step, value in enumerate([2.0, 1.0, math.inf, math.nan], 10):
        run.run_step(RunStep(step, 0.0, 1.0, "applied", {"loss": value}))
    found = summary(run)
    assert "the logged loss" in found.looked.at
    assert (found.loss.first, found.loss.finite_until, found.loss.steps) == (2.0, 11, 4)
    run.loss(10, 3.0)  # seen where the backward begins: the logged one is left out from then on
    assert summary(run).loss[:2] == (3.0, 3.0)


def test_a_gradient_without_activations_names_no_layer() -> None:
    """With the last recorded step before it; where activations are recorded, too, it may, unless an update in a step
    that was not recorded may have spoilt the weights."""
    deep = {"xy_distribution": True, "all_xy": True}
    open_, unsure, closed = account(), account(**deep), account(**deep, param_distribution=True)
    for each in (open_, unsure, closed):
        each.rows(rows(10))
        each.rows(rows(18, nan(18)))
    (first,), (unknown,), (other,) = (summary(each).findings for each in (open_, unsure, closed))
    assert not unknown.located
    assert (first.grade, first.kind, first.where, first.after) == ("critical", "NaN", ("head.bias",), 10)
    assert (first.located, other.located) == (False, True)


def test_a_number_of_the_run_that_is_not_finite_names_no_layer() -> None:
    """It shows in the loss."""
    run = account()
    run.run_found([RunFinding("RunNan", "loss", 12, math.nan, math.nan, "loss is nan", "critical")])
    run.run_found([RunFinding("RunNan", "loss", 13, 1.0, math.nan, "over", "critical", True)])
    (finding,) = summary(run).findings
    assert (finding.where, finding.located, dict(finding.evidence).keys()) == (("loss",), False, {"loss"})


def test_a_finding_of_a_check_counts_once() -> None:
    """It comes as one about numbers, too."""
    run = account()
    run.checked([CheckFinding("loss-not-finite", "critical", (), 12, 12, "the loss is nan", {"loss": math.nan})])
    run.run_found([RunFinding("loss-not-finite", "", 12, math.nan, math.nan, "the loss is nan", "critical")])
    assert [finding.where for finding in summary(run).findings] == [()]


def test_the_loss_and_the_cost_are_those_of_the_rank_that_is_named() -> None:
    """The loss of the rank that broke first; the cost a step in milliseconds, too, of the rank with most."""
    ranks = []
    for rank, bad in ((0, 13), (1, 12)):
        run = RunAccount(load({"wg_distribution": True}), rank, 0, 10)
        for step in range(10, 15):
            run.loss(step, math.nan if step >= bad else 2.0)
        run.checked([CheckFinding("loss-not-finite", "critical", (), bad, bad, "the loss is nan", {"loss": math.nan})])
        ranks.append(run.summary(30, "out/rank0", {}, True, (0.05 * (rank + 1), 1.0)))
    lines = report_of([WatchSummary.of(json.loads(json.dumps(rank.as_json()))) for rank in ranks]).lines()
    assert lines[0].endswith("step 12, rank 1")
    assert "loss 2 at step 11 -> nan at step 12" in lines
    assert "loss 2 to nan, last finite at step 11 (2)" in lines
    assert "cost: 5 ms a step (10.0 % longer)" in lines


def activation(step: int, signal: str, *names: str) -> Snapshot:
    """A step with rows that are not finite, whose update a scaler has skipped."""
    keys, order = tuple(Key(name, part="output") for name in names), np.arange(len(names))
    shapes, columns = ((2,),) * len(names), {"sumsq": np.full(len(names), math.nan)}
    batch = Batch(signal, step, keys, shapes, ("float32",) * len(names), order, columns, update=Update("skipped"))
    return Snapshot(step, 0, 0.0, [batch], ("norm",))


@pytest.mark.parametrize(
    ("checks", "rows_of", "where", "text"),
    [
        (["loss-not-finite"], ("actv", "n1", "head"), ("n1",), "at step 13, with finite weights, it shows first in n1"),
        (["loss-not-finite", "gradient-not-finite"], ("actv", "n1"), (), "already spoilt, by an update up to step 12,"),
        (["loss-not-finite"], ("param_origin", "n1"), (), "already spoilt, by an update up to step 12,"),
    ],
)
def test_rows_around_an_incident_name_a_module_if_the_weights_were_finite(
    checks: list[str], rows_of: tuple[str, ...], where: tuple[str, ...], text: str
) -> None:
    """Neither after an update with gradients that are not finite, nor if the weights themselves are not; also as read
    from the board."""
    run = account()
    run.stretches = [CollectedSteps(("loss-not-finite",), 12, 13)]
    evidence = {"loss": math.nan}
    run.checked([CheckFinding(check, "critical", (), 12, 12, check, evidence) for check in checks])
    run.rows(activation(13, *rows_of))
    report = report_of([WatchSummary.of(json.loads(json.dumps(summary(run, 20).as_json())))])
    assert (report.verdict.kind, report.verdict.where, report.verdict.since) == ("loss-not-finite", where, 12)
    assert text in report.verdict.text
    assert "collected deep at steps 13 to 19 (loss-not-finite)" in report.facts[1]


def test_a_loss_that_alone_is_not_finite_names_no_module() -> None:
    """All that modules have returned is finite."""
    run = account()
    run.stretches = [CollectedSteps(("loss-not-finite",), 12, 13, 22)]
    run.checked([CheckFinding("loss-not-finite", "critical", (), 12, 12, "nan", {"loss": math.nan})])
    batch = activation(13, "actv_grad", "head").batches[0]
    run.rows(Snapshot(13, 0, 0.0, [replace(batch, update=Update())], ("norm",)))
    verdict = report_of([summary(run)]).verdict
    assert (verdict.where, "it lies in the loss" in verdict.text) == ((), True)


def test_a_summary_is_read_as_it_was_written() -> None:
    """With all that is in it."""
    run = account()
    run.rows(rows(18, nan(18)))
    run.loss(18, 1.5)
    found = summary(run)
    assert WatchSummary.of(found.as_json()) == found
    assert (found.pid, found.steps, found.recorded) == (os.getpid(), 20, 1)


def test_findings_that_repeat_are_bounded() -> None:
    """A NaN at every step is some findings, and the first of a kind is passed on at once."""
    run, changes = account(), list[bool]()
    run.changed = changes.append
    for step in range(10, 200):
        run.rows(rows(step, nan(step)))
    assert len(summary(run, 200).findings) == 10
    assert changes.count(True) == 1


def test_what_stood_out_before_a_number_that_is_not_finite_goes_with_it_to_the_parent_process() -> None:
    """The account asks for it once the number is found; a leap of a number of the run is not looked back from."""
    run, onset = account(), Onset(50, "layers.3.weight", "grad_reduced", 5, 7, 12.5, 1 / 201)
    asked: list[int] = []

    def look_back(step: int) -> Onset:
        asked.append(step)
        return onset

    run.look_back = look_back
    run.run_found([RunFinding("RunSpike", "loss", 11, 9.0, 1.0, "the loss leaps", "warning", resolved=False)])
    run.rows(rows(12, nan(12)))
    parsed = WatchSummary.of(json.loads(json.dumps(summary(run).as_json())))
    assert asked == [12]
    assert [finding.onset for finding in parsed.findings] == [None, onset]
    assert "began in layers.3.weight at step 5: 12.5 times its norm before" in report_of([parsed]).line()
