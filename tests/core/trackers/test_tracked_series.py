"""Series that a tracker gets."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from probe.core.records import Snapshot
from probe.core.trackers.tracked_series import MOST_SERIES, SignalStep, TrackedSeries
from tests.core.output.test_metrics_board import run_step, tensors

LAYERS = 500


def norms(step: int, **others: float) -> Mapping[str, float]:
    """Norms of many layers, of which those in ``others`` differ."""
    usual = {f"layers.{n}": 1.0 + n / 1000 + step / 1e6 for n in range(LAYERS)}
    return usual | {f"layers.{name[1:]}": value for name, value in others.items()}


def at(step: int, **others: float) -> Snapshot:
    snapshot = tensors(float(step), norms(step, **others))
    return Snapshot(step, 0, float(step), snapshot.batches, snapshot.ops, scalars=snapshot.scalars)


def layers_of(values: Mapping[str, float]) -> set[str]:
    return {name.split("/")[2] for name in values if name.count("/") == 3}


def test_the_number_is_limited_and_a_choice_is_kept() -> None:
    """Never more than 200 series, all of them from their choice on, those asked for first."""
    series = TrackedSeries(MOST_SERIES, ["layers.7", "layers.40*"])
    chosen: set[str] = set()
    for step in range(64):
        values = series.of_snapshot(at(step)).values
        assert chosen <= values.keys()
        assert len(values) <= MOST_SERIES
        chosen = set(values)
        assert {"layers.7", "layers.40", *(f"layers.{n}" for n in range(400, 410))} <= layers_of(values)
    assert series.left_out == LAYERS - len(layers_of(chosen))


def test_a_layer_far_from_its_history_is_chosen() -> None:
    """A tenfold norm among others that hardly change; one that is not finite at once."""
    series = TrackedSeries(MOST_SERIES, [])
    for step in range(15):
        assert "layers.321" not in layers_of(series.of_snapshot(at(step)).values) or step >= 2
    assert "layers.444" in layers_of(series.of_snapshot(at(15, _444=10.0)).values)
    assert series.of_snapshot(at(17, _499=math.inf)).values["probe/grad_reduced/layers.499/norm"] == math.inf


def test_a_signal_has_a_summary() -> None:
    """Median and maximum of the finite norms, the worst layer, and how many layers have NaN or Inf."""
    series = TrackedSeries(MOST_SERIES, [])
    values = series.of_snapshot(at(0, _9=50.0)).values
    expected = list(norms(0, _9=50.0).values())
    assert values["probe/grad_reduced/norm_median"] == np.median(expected)
    assert values["probe/grad_reduced/norm_max"] == 50.0
    assert series.worst == {"grad_reduced": "layers.9"}
    values = series.of_snapshot(at(1, _9=50.0, _30=math.nan, _31=math.inf)).values
    assert values["probe/grad_reduced/norm_max"] == 50.0
    assert (values["probe/grad_reduced/nan_layers"], values["probe/grad_reduced/inf_layers"]) == (1, 1)
    assert series.worst == {"grad_reduced": "layers.30"}


def test_of_several_ranks_the_worst_counts() -> None:
    """The largest value of a layer; the summary names the rank."""
    series = TrackedSeries(MOST_SERIES, [])
    batches = [tensors(0.0, {"fc": value}).batches[0] for value in (1.0, 4.0, 2.0)]
    row = series.row(3, 0.0, ("norm",), {"grad_reduced": SignalStep(batches, (0, 1, 2))}, None)
    assert row.values["probe/grad_reduced/fc/norm"] == 4.0
    assert series.worst == {"grad_reduced": "fc (rank 1)"}


def test_numbers_of_the_run_are_limited_too() -> None:
    """A quarter of the series; their names stay."""
    series = TrackedSeries(MOST_SERIES, [])
    many = {f"n{n}": float(n) for n in range(300)}
    values = series.of_snapshot(run_step(4, **many)).values
    assert values == {f"probe/run/n{n}": float(n) for n in range(MOST_SERIES // 4)}
