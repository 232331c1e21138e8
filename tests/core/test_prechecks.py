"""Prechecks: what the facts of a few updates show, and what they leave open."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import pytest

from probe.core.checks.check import CheckFinding
from probe.core.faults import Faults
from probe.core.prechecks import PRECHECKS
from probe.core.prechecks.judgement import compared, judged, preflight
from probe.core.prechecks.trial import (
    Accumulation,
    Causality,
    InputFacts,
    LoaderFacts,
    LossCall,
    ModelCall,
    OutputFacts,
    ParameterFacts,
    ScheduleFacts,
    Trial,
    WorkerFacts,
)

LOSS = LossCall(0, "cross_entropy", "mean", "numbers", 64, 256, 0.0, 4.2, "next", 1)
BINARY = LOSS._replace(function="binary_cross_entropy_with_logits", classes=0, relation="other")
RELU = OutputFacts("body.1", "ReLU", 1.0, 0.5, 0.0, True)
WEIGHT = ParameterFacts("body.0.weight", "Linear", (8, 4), -0.5, 0.5, False, 0, (1.0, 1.0))
LAYERS = [WEIGHT._replace(name=f"body.{n}.weight", order=n, gradients=(10.0 ** (n - 7),)) for n in range(8)]
MICRO = [LOSS._replace(update=n // 2, labels=n) for n in range(6)]
SUMS = [Accumulation((4.2, 4.2), divided_later=False, normalises=False)] * 3
AHEAD = ScheduleFacts("LambdaLR", (2, 2, 2), 1, 160, "run.steps", True, (0.1, 0.1, 0.1, 0.1))
PIXELS = ModelCall(0, 1, (InputFacts(128.0, 75.0, 148.0),))
WORKER = WorkerFacts("1-7", 0, {"numpy": 5}, 0)
LOADER = LoaderFacts("SequentialSampler", False, False, 0, False)


def calls(*digests: int) -> list[ModelCall]:
    """One call in each update."""
    return [ModelCall(update, digest, ()) for update, digest in enumerate(digests)]


def found(trial: Trial) -> dict[str, str]:
    """Grades of the findings of one rank, by kind."""
    faults = Faults()
    findings = judged(trial, faults)
    assert faults.counts == {}
    return {finding.check: finding.grade for finding in findings}


FAULTS: dict[str, tuple[Trial, dict[str, str]]] = {
    "sees later tokens": (Trial(losses=[LOSS], causality=Causality(0.4, 16, 0.0)), {"not-causal": "warning"}),
    "labels of masked tokens": (
        Trial(losses=[LOSS._replace(relation="other")], causality=Causality(0.4, 16, 0.0)),
        {},
    ),
    "causal": (Trial(losses=[LOSS], causality=Causality(0.0, 16, 0.0)), {}),
    "copies its input": (
        Trial(losses=[LOSS._replace(relation="same")], causality=Causality(0.0, 16, 0.0)),
        {"unshifted-labels": "warning"},
    ),
    "autoencoder": (
        Trial(losses=[LOSS._replace(relation="same")], causality=Causality(0.4, 16, 0.0)),
        {"unshifted-labels": "note"},
    ),
    "mixes samples": (Trial(losses=[LOSS], causality=Causality(0.0, 16, 0.2)), {"samples-mixed": "note"}),
    "softmax twice": (Trial(losses=[LOSS._replace(form="probabilities")]), {"softmax-twice": "warning"}),
    "sigmoid twice": (Trial(losses=[BINARY._replace(form="sigmoid")]), {"softmax-twice": "warning"}),
    "logarithms of probabilities": (Trial(losses=[LOSS._replace(form="log-probabilities")]), {}),
    "likelihood of probabilities": (
        Trial(losses=[LOSS._replace(function="nll_loss", form="probabilities")]),
        {"not-log-probabilities": "warning"},
    ),
    "all labels ignored": (Trial(losses=[LOSS._replace(ignored=1.0, value=math.nan)]), {"ignored-labels": "warning"}),
    "most labels ignored": (Trial(losses=[LOSS._replace(ignored=0.95)]), {"ignored-labels": "note"}),
    "loss begins high": (Trial(losses=[LOSS._replace(value=20.0)]), {"initial-loss": "note"}),
    "loss begins immense": (Trial(losses=[LOSS._replace(value=900.0)]), {"initial-loss": "warning"}),
    "loss begins at nothing": (Trial(losses=[LOSS._replace(value=0.01)]), {"initial-loss": "note"}),
    "loss is summed": (
        Trial(
            losses=[LOSS._replace(reduction="sum", value=900.0)], accumulations=[Accumulation((900.0,), False, True)]
        ),
        {"summed-loss": "note"},
    ),
    "labels are broadcast": (
        Trial(losses=[LOSS._replace(function="mse_loss", classes=0, broadcast=True)]),
        {"broadcast-loss": "warning"},
    ),
    "micro batches are added": (Trial(losses=MICRO, accumulations=SUMS), {"undivided-accumulation": "warning"}),
    "added for Adam": (
        Trial(losses=MICRO, accumulations=[row._replace(normalises=True) for row in SUMS]),
        {"undivided-accumulation": "note"},
    ),
    "divided before the update": (
        Trial(losses=MICRO, accumulations=[row._replace(divided_later=True) for row in SUMS]),
        {},
    ),
    "averaged": (Trial(losses=MICRO, accumulations=[Accumulation((2.1, 2.1), False, False)] * 3), {}),
    "one update was skipped": (Trial(losses=MICRO, accumulations=[*SUMS, Accumulation((4.2,), False, False)]), {}),
    "two losses of one batch": (
        Trial(losses=[call._replace(labels=0) for call in MICRO], accumulations=SUMS),
        {},
    ),
    "time step is no small one": (
        Trial(parameters=[WEIGHT._replace(name="mixer.dt_bias", kind="Scan", shape=(8,), least=1.0, most=1.0)]),
        {"initialisation": "warning"},
    ),
    "both factors are 0": (
        Trial(parameters=[WEIGHT._replace(name=f"q.lora_{n}.weight", least=0.0, most=0.0) for n in "AB"]),
        {"initialisation": "warning"},
    ),
    "one factor is 0": (
        Trial(parameters=[WEIGHT._replace(name="q.lora_B.weight", least=0.0, most=0.0, equal_rows=True)]),
        {},
    ),
    "units are alike": (
        Trial(parameters=[WEIGHT._replace(least=0.1, most=0.1, equal_rows=True)]),
        {"symmetric-units": "warning"},
    ),
    "all units are off": (Trial(outputs=[RELU._replace(zeros=1.0)]), {"dead layer": "warning"}),
    "last units are off": (Trial(outputs=[RELU._replace(zeros=1.0, hidden=False)]), {}),
    "units are saturated": (
        Trial(outputs=[RELU._replace(kind="Tanh", saturated=0.95)]),
        {"saturated-units": "warning"},
    ),
    "outputs grow": (
        Trial(outputs=[RELU._replace(name=f"layers.{n}", kind="Block", rms=20.0**n) for n in range(4)]),
        {"activation-growth": "note"},
    ),
    "outputs explode": (
        Trial(outputs=[RELU._replace(name=f"layers.{n}", kind="Block", rms=20.0**n) for n in range(7)]),
        {"activation-growth": "warning"},
    ),
    "gradient vanishes": (Trial(parameters=LAYERS), {"vanishing gradient": "warning"}),
    "gradient explodes": (
        Trial(parameters=[row._replace(order=-row.order + 7) for row in LAYERS]),
        {"exploding gradient": "warning"},
    ),
    "one branch begins at 0": (Trial(parameters=[LAYERS[0]._replace(gradients=(0.0,)), *LAYERS[4:]]), {}),
    "one block in single precision": (
        Trial(
            outputs=[
                RELU._replace(name=f"layers.{n}.up", kind="Linear", dtype="torch.bfloat16" if n else "torch.float32")
                for n in range(3)
            ]
        ),
        {"dtype-unlike": "warning"},
    ),
    "same batch": (Trial(calls=calls(1, 1, 1)), {"same-batch": "note"}),
    "pixels": (Trial(calls=[PIXELS]), {"unnormalized-inputs": "note"}),
    "workers draw alike": (
        Trial(workers=[WORKER, WORKER._replace(worker=1)]),
        {"same-worker-numbers": "warning"},
    ),
    "workers draw numbers of their own": (
        Trial(workers=[WORKER, WORKER._replace(worker=1, generators={"numpy": 6})]),
        {},
    ),
    "workers of two epochs": (Trial(workers=[WORKER, WORKER._replace(loader="1-8")]), {}),
    "workers read the same stream": (
        Trial(workers=[WORKER._replace(worker=n, generators={}, batch=3) for n in range(2)]),
        {"samples-repeated": "warning"},
    ),
    "not shuffled": (Trial(loaders=[LOADER]), {"same-order": "note"}),
    "evaluation is not shuffled": (Trial(loaders=[LOADER, LOADER._replace(shuffles=True)]), {}),
    "epoch is not set": (Trial(loaders=[LOADER._replace(repeated_epoch=True)]), {"same-order": "warning"}),
    "samples are not divided": (Trial(world=2, loaders=[LOADER]), {"same-order": "note"}),
    "schedule for fewer steps": (Trial(schedules=[AHEAD]), {"schedule-ahead": "warning"}),
    "schedule for all processes": (Trial(schedules=[AHEAD._replace(planned="")]), {"schedule-ahead": "note"}),
    "schedule in each micro batch": (
        Trial(schedules=[AHEAD._replace(planned="", horizon=0, by_processes=False, backwards=2)]),
        {"schedule-ahead": "warning"},
    ),
    "schedule once an update": (Trial(schedules=[AHEAD._replace(advances=(1, 1))]), {}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_trial_shows_its_fault_and_no_other(name: str) -> None:
    """Kinds and grades follow from the facts; what legitimate programs do is a note or nothing."""
    trial, expected = FAULTS[name]
    assert found(trial) == expected


def test_a_trial_is_read_as_it_was_written() -> None:
    """Through JSON, with numbers that are none."""
    trial = Trial(
        rank=1, world=2, losses=[LOSS], calls=[PIXELS], workers=[WORKER], schedules=[AHEAD], parameters=LAYERS
    )
    trial.causality, trial.accumulations, trial.outputs = Causality(0.5, 16, math.inf), SUMS, [RELU]
    trial.loaders = [LOADER]
    assert Trial.of(json.loads(json.dumps(trial.as_json()))) == trial


def test_replicas_that_begin_apart_are_named() -> None:
    """Parameters that differ, though all ranks apply the same gradient to them; parts and moved ones are others."""
    rank = Trial(world=2, parameters=[WEIGHT._replace(digest=1), WEIGHT._replace(name="bias", digest=2)])
    apart = replace(rank, rank=1, parameters=[WEIGHT._replace(digest=3), WEIGHT._replace(name="bias", digest=2)])
    (finding,) = compared([rank, apart])
    assert (finding.check, finding.where, finding.ranks) == ("replicas-differ", ("body.0",), (0, 1))
    own = [row._replace(gradients=(2.0,)) for row in apart.parameters]
    assert compared([rank, replace(apart, parameters=own)]) == compared([rank, replace(rank, rank=1)]) == []


def test_ranks_with_the_same_random_numbers_and_data_are_named() -> None:
    """Of data-parallel ranks alone, and inputs only if they change."""
    rank = Trial(world=2, data_parallel=True, dropout=5, calls=calls(1, 2, 3))
    other = replace(rank, rank=1)
    findings = compared([other, rank])
    assert [(finding.check, finding.ranks) for finding in findings] == [("same-dropout", (0, 1)), ("same-data", (0, 1))]
    assert compared([rank, replace(other, dropout=6, calls=calls(4, 5, 6))]) == []
    assert compared([replace(rank, calls=calls(1, 1, 1), dropout=0), replace(other, calls=calls(1, 1, 1))]) == []
    assert compared([replace(rank, data_parallel=False), replace(other, data_parallel=False)]) == []


def test_the_line_counts_what_was_not_looked_at() -> None:
    """What holds, what is broken, what a program has nothing of, and what could not be seen, with the reason."""
    trial = Trial(losses=[LOSS._replace(form="probabilities")], unseen={"not-causal": "the model could not be called"})
    line = preflight([trial], judged(trial, Faults()))
    assert line.startswith("before training: ")
    assert "1 broken (softmax-twice)" in line
    assert "the model could not be called: not-causal" in line
    counts = {part.split(" ", 1)[1]: int(part.split()[0]) for part in re.findall(r"\d+ (?:hold|not applicable)", line)}
    assert 0 < counts["hold"] < sum(counts.values()) < len(PRECHECKS)
    assert preflight([Trial(unrecorded="not applicable here")], []) == "before training: not applicable here"


def test_a_precheck_that_fails_is_counted_and_named() -> None:
    """It neither stops the others nor looks like health."""
    trial, faults = Trial(losses=[LOSS._replace(form="probabilities")]), Faults()
    trial.calls = None  # type: ignore[assignment]
    findings: list[CheckFinding] = judged(trial, faults)
    assert [finding.check for finding in findings] == ["softmax-twice"]
    assert "precheck same-batch: TypeError" in faults.counts
    trial.calls = []
    assert "it failed: " in preflight([trial], findings)


@pytest.mark.parametrize("name", PRECHECKS)
def test_each_precheck_states_its_source_and_advice(name: str) -> None:
    """One sentence each, and a link."""
    check = PRECHECKS[name]
    assert check.name == name
    assert check.source.startswith("https://")
    assert check.remedy.endswith(".")
    assert check.sees[0].islower()
    assert 2 <= len(check.title.split()) <= 5
