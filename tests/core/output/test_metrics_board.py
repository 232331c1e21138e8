"""Series of a rank: which there are, and which are left out."""

from __future__ import annotations

import numpy as np
import pytest

from probe.core.naming import RUN
from probe.core.output.metrics.board import CHOOSE_SECONDS, LONGEST_LABEL, Counts, MetricBoard
from probe.core.output.metrics.catalogue import METRICS, Series
from probe.core.records import Batch, Key, Outcome, Snapshot


def run_step(step: int, outcome: Outcome = "applied", **values: float) -> Snapshot:
    """Numbers of the run at one step."""
    names = [name.replace("__", "/") for name in values]
    return Snapshot(step, 0, 1000.0 + step, (batch(RUN, names, {"value": list(values.values())}),), (), outcome=outcome)


def tensors(time: float, norms: dict[str, float], signal: str = "grad_reduced") -> Snapshot:
    """Norms of tensors at one step."""
    squares = {"sumsq": [value * value for value in norms.values()]}
    rows = batch(signal, list(norms), squares)
    return Snapshot(1, 0, time, (rows,), ("norm", "shape"), scalars={"probe/overhead": 0.25})


def batch(signal: str, names: list[str], columns: dict[str, list[float]]) -> Batch:
    number = len(names)
    return Batch(
        signal,
        1,
        tuple(map(Key, names)),
        ((),) * number,
        ("float64",) * number,
        np.arange(number),
        {name: np.array(values, np.float64) for name, values in columns.items()},
    )


def read(board: MetricBoard, faults: int = 0, **findings: int) -> dict[tuple[str, ...], float]:
    """Every series of ``board``, by metric and labels."""
    series, values = board.series(Counts(findings, faults))
    assert len(series) == len(set(series)) == len(values)
    assert all(each.metric in METRICS and len(each.labels) == len(METRICS[each.metric].labels) for each in series)
    return {
        (each.metric.removeprefix("probe_"), *each.labels): value for each, value in zip(series, values, strict=True)
    }


def test_numbers_of_the_run_have_the_conventional_names_and_units() -> None:
    """Numbers that are known have metrics of their own, others one by name; TFLOPS become FLOPS."""
    board = MetricBoard(200, ())
    board.take(run_step(7, loss=0.5, model_tflops=2.0, perplexity=3.0, phase__data_seconds=0.25, skipped=0.0))
    board.take(run_step(8, loss=float("nan"), phase__data_seconds=0.5, skipped=1.0, outcome="skipped"))
    found = read(board, faults=3, AnomalyNan=2, RunNan=0)
    assert np.isnan(found.pop(("training_loss",)))
    assert found == {
        ("training_step",): 8.0,
        ("training_steps_total",): 2.0,
        ("training_last_step_timestamp_seconds",): 1008.0,
        ("training_model_flops_per_second",): 2e12,
        ("training_number", "perplexity"): 3.0,
        ("training_phase_seconds_total", "data"): 0.75,
        ("training_skipped_steps_total",): 1.0,
        ("findings_total", "AnomalyNan"): 2.0,
        ("findings_total", "RunNan"): 0.0,
        ("faults_total",): 3.0,
        ("series_dropped",): 0.0,
    }


def test_numbers_that_come_late_are_no_further_step() -> None:
    """A number that is logged after the end of its step counts for that step."""
    board = MetricBoard(200, ())
    board.take(run_step(3, loss=1.0))
    board.take(run_step(3, outcome="unknown", val_loss=2.0))
    found = read(board)
    assert found["training_steps_total",] == 1.0
    assert found["training_validation_loss",] == 2.0


def test_of_several_readings_of_a_layer_the_largest_counts() -> None:
    """Micro batches and repeated calls of one layer share a series, in which NaN stands above all."""
    board = MetricBoard(200, ())
    rows = batch("actv", ["fc", "fc", "fc", "out", "out"], {"sumsq": [4.0, 9.0, 1.0, 1.0, float("nan")]})
    board.take(Snapshot(1, 0, 0.0, (rows,), ("norm",), scalars={"probe/overhead": 0.5}))
    found = read(board)
    assert found["tensor_norm", "actv", "fc"] == 3.0
    assert np.isnan(found["tensor_norm", "actv", "out"])
    assert found["overhead_ratio",] == 0.5


def test_a_budget_holds_and_those_left_out_are_counted() -> None:
    """There are never more series than the budget has; numbers of the run come first."""
    board = MetricBoard(60, ())
    board.take(run_step(1, loss=1.0, learning_rate=0.1))
    board.take(tensors(0.0, {f"layers.{n}": 1.0 for n in range(500)}))
    found = read(board, AnomalyNan=0)
    shown = sum(name[0] == "tensor_norm" for name in found)
    assert len(found) <= 60
    assert shown >= 25
    assert found["series_dropped",] == 500 - shown
    many: dict[str, float] = {f"own_{n}": 1.0 for n in range(300)}
    board.take(run_step(2, **many))
    later = read(board, AnomalyNan=0)
    assert len(later) <= 60
    assert later["training_loss",] == 1.0
    assert later["series_dropped",] > found["series_dropped",]


def test_the_layers_that_change_most_are_shown_and_bad_ones_at_once() -> None:
    """A choice is made again after a while; a value that is not finite does not wait for it."""
    board = MetricBoard(60, ())
    names = [f"layers.{n}" for n in range(200)]
    for step in range(5):
        board.take(tensors(step, dict.fromkeys(names, 1.0)))
    assert ("tensor_norm", "grad_reduced", "layers.150") not in read(board)
    board.take(tensors(6, dict.fromkeys(names, 1.0) | {"layers.150": 40.0}))
    assert ("tensor_norm", "grad_reduced", "layers.150") not in read(board)
    board.take(tensors(CHOOSE_SECONDS + 7, dict.fromkeys(names, 1.0) | {"layers.150": 80.0}))
    assert read(board)["tensor_norm", "grad_reduced", "layers.150"] == pytest.approx(80.0)
    board.take(tensors(CHOOSE_SECONDS + 8, dict.fromkeys(names, 1.0) | {"layers.199": float("nan")}))
    assert np.isnan(read(board)["tensor_norm", "grad_reduced", "layers.199"])


def test_layers_are_chosen_by_patterns() -> None:
    """Only rows whose names match have series, and no other counts as left out."""
    board = MetricBoard(200, ("layers.1.*", "head"))
    board.take(tensors(0.0, {"layers.0.fc": 1.0, "layers.1.fc": 2.0, "head": 3.0, "layers.11.fc": 4.0}))
    found = read(board)
    assert {name[2] for name in found if name[0] == "tensor_norm"} == {"layers.1.fc", "head"}
    assert found["series_dropped",] == 0


def test_places_of_collectives_are_no_layers() -> None:
    """Rows of collectives are named by lines of source: they would be series without end."""
    board = MetricBoard(200, ())
    board.take(tensors(0.0, {"train.py[12]": 1.0}, signal="other"))
    assert not any(name[0] == "tensor_norm" for name in read(board))


def test_labels_are_bounded_and_can_be_encoded() -> None:
    """A name of any length and with lone surrogates becomes a label; two long names stay apart by their ends."""
    board = MetricBoard(200, ())
    long = "x" * 1000
    board.take(tensors(0.0, {f"{long}.a": 1.0, f"{long}.b": 2.0, "bad\udc80name": 3.0}))
    labels = [name[2] for name in read(board) if name[0] == "tensor_norm"]
    assert len(labels) == 3
    assert all(len(each.encode("utf-8")) <= LONGEST_LABEL + 20 for each in labels)


def test_series_are_hashable_names() -> None:
    """The same metric and labels are the same series."""
    assert Series("a", ("b",)) == Series("a", ("b",))
