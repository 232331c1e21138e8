"""Runs in MLflow, SwanLab and Trackio: on this machine, read back from their files and databases."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.core.trackers.read_back import of_mlflow, of_swanlab, of_trackio
from tests.core.trackers.training import BAD, STEPS, trained
from tests.required import require_version

LOSSES = {step: step / 4 for step in range(STEPS)}
OWN = {step: float(step) for step in range(STEPS)}


def run_in(name: str, folder: Path, how: str = "own", **environment: str) -> Any:
    """The folder of a run with a tracker; nothing was counted as a fault."""
    packages = require_version(
        {"mlflow": "mlflow-skinny-3.17.2", "swanlab": "swanlab-0.10.3", "trackio": "trackio-0.43.0"}[name]
    )
    places = {
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.sqlite'}",
        "SWANLAB_MODE": "offline",
        "TRACKIO_DIR": str(folder / "trackio"),
    }
    printed = trained(name, packages, folder, how, **(places | environment))
    return printed if environment else (printed["faults"], folder)


def named(values: dict[tuple[int, str], float], name: str) -> dict[int, float]:
    """Values of one series by step."""
    return {step: value for (step, each), value in values.items() if each == name}


def test_mlflow_has_the_numbers_and_counts_in_place_of_nan(tmp_path: Path) -> None:
    """No value is NaN or infinite, and how many were is there; findings, alert and first cause are tags and a file."""
    faults, folder = run_in("mlflow", tmp_path)
    assert faults == {}
    metrics, tags, runs = of_mlflow(folder / "mlflow.sqlite")
    assert {step: value for step, name, value, _ in metrics if name == "probe/run/loss"} == LOSSES
    assert all(math.isfinite(value) and abs(value) < 1e308 and not is_nan for _, _, value, is_nan in metrics)
    nans: dict[int, float] = {}
    for step, name, value, _ in metrics:
        if name == "probe/nan_values":
            nans[step] = nans.get(step, 0.0) + value
    assert [nans[step] > 0 for step in range(STEPS)] == [step >= BAD for step in range(STEPS)]
    assert f"at step {BAD}" in tags["probe/first_cause"]
    assert "first bad" in tags[f"probe/alert/{BAD}"]
    assert [status for status, _ in runs] == ["FINISHED"]
    (path,) = folder.glob("mlruns/*/*/artifacts/probe/findings.json")
    table = json.loads(path.read_text("utf-8"), parse_constant=pytest.fail)
    assert min(row[0] for row in table["data"]) == BAD


def test_swanlab_has_the_numbers(tmp_path: Path) -> None:
    """The values of each step, NaN as such; findings as a table, alert and first cause as texts."""
    faults, folder = run_in("swanlab", tmp_path)
    assert faults == {}
    values, texts, _ = of_swanlab(folder)
    assert named(values, "probe/run/loss") == LOSSES
    assert math.isnan(named(values, "probe/grad_reduced/fc2.weight/norm")[STEPS - 1])
    assert any(f"on rank 0 at step {BAD}" in text and "first_cause" in text for text in texts[".txt"])
    assert any("first bad" in text and "first_cause" not in text for text in texts[".txt"])
    assert any("AnomalyNan" in text for text in texts[".json"])


def test_trackio_has_the_numbers(tmp_path: Path) -> None:
    """The values of each step, NaN as such; an alert, findings as a table, and the first cause as a text."""
    faults, folder = run_in("trackio", tmp_path)
    assert faults == {}
    values, others, alerts = of_trackio(folder / "trackio", "training")
    assert named(values, "probe/run/loss") == LOSSES
    assert math.isnan(named(values, "probe/grad_reduced/fc2.weight/norm")[STEPS - 1])
    assert f"at step {BAD}" in others["probe/summary"]
    assert {row["rule"] for row in others["probe/findings"]} == {"AnomalyNan"}
    assert [(f"at step {BAD}" in title, level) for title, _, level in alerts] == [(True, "error")]


@pytest.mark.parametrize("how", ["step", "plain"])
def test_values_of_the_program_stay_where_they_are(how: str, tmp_path: Path) -> None:
    """Every loss stands at the program's own step, also if the tracker counts the steps, and the run goes on."""
    for name in ("swanlab", "trackio"):
        (tmp_path / name).mkdir()
        faults, folder = run_in(name, tmp_path / name, how)
        assert faults == {}
        values = of_swanlab(folder)[0] if name == "swanlab" else of_trackio(folder / "trackio", "program")[0]
        assert named(values, "loss") == OWN
        assert named(values, "end") == {STEPS: 1.0}
        assert named(values, "probe/run/loss").items() <= LOSSES.items()
        assert named(values, "probe/run/loss")[STEPS - 1] == LOSSES[STEPS - 1]


def test_a_run_of_mlflow_is_joined(tmp_path: Path) -> None:
    """By its id, also if it begins after the monitor; the program's values are unharmed, and it ends its run."""
    faults, folder = run_in("mlflow", tmp_path, "later")
    assert faults == {}
    metrics, _, runs = of_mlflow(folder / "mlflow.sqlite")
    assert {step: value for step, name, value, _ in metrics if name == "loss"} == OWN
    assert {step: value for step, name, value, _ in metrics if name == "probe/run/loss"} == LOSSES
    assert runs == [("FINISHED", "program")]


def test_what_cannot_begin_costs_its_rows_alone(tmp_path: Path) -> None:
    """SwanLab without a key asks nobody, MLflow's store of files is closed, Trackio's folder cannot be made, of
    which it warns itself. Each is named, and the files are whole."""
    for name, wrong in (
        ("swanlab", {"SWANLAB_MODE": "online"}),
        ("mlflow", {"MLFLOW_TRACKING_URI": "file:./runs"}),
        ("trackio", {"TRACKIO_DIR": "/dev/full/place"}),
    ):
        (tmp_path / name).mkdir()
        printed = run_in(name, tmp_path / name, HOME=str(tmp_path), **wrong)
        assert name == "trackio" or printed["faults"][f"tracker {name}: rows not taken"] > 0
        assert ("trackio failed" if name == "trackio" else f"without it: tracker {name}") in printed["log"]
        assert len(list((tmp_path / name).glob("out/*/grad_reduced_*.csv"))) == STEPS
