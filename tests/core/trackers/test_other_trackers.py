"""Runs in MLflow, SwanLab and Trackio: on this machine, read back from their files and databases."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.core.trackers.read_back import of_mlflow, of_swanlab, of_trackio
from tests.core.trackers.training import BAD, FINISHED, PACKAGES, STEPS, ran_with, trained

LOSSES = {step: step / 4 for step in range(STEPS)}
OWN = {step: float(step) for step in range(STEPS)}

TABLES = """
import sys
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
SqlAlchemyStore(f"sqlite:///{sys.argv[1]}", sys.argv[2])
"""


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow's database without a run: each table that it makes is synchronized with the disk."""
    folder = tmp_path_factory.mktemp("tables")
    made = ran_with("mlflow", ["-c", TABLES, str(folder / "mlflow.sqlite"), str(folder)], folder)
    assert made.returncode == 0, made.stderr
    return folder / "mlflow.sqlite"


def run_in(
    names: str, folder: Path, how: str = "own", tables: Path | None = None, **environment: str
) -> dict[str, Any]:
    """Faults and log of a run with some trackers, in ``folder``; ``tables`` are MLflow's."""
    if tables is not None:
        shutil.copy(tables, folder / "mlflow.sqlite")
    places = {
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.sqlite'}",
        "SWANLAB_MODE": "offline",
        "TRACKIO_DIR": str(folder / "trackio"),
    }
    return trained(names, folder, how, **(places | environment))


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory, tables: Path) -> Path:
    """Where a run in three trackers has left its files; nothing was counted as a fault."""
    folder = tmp_path_factory.mktemp("own")
    assert run_in("mlflow,swanlab,trackio", folder, tables=tables)["faults"] == {}
    return folder


def named(values: dict[tuple[int, str], float], name: str) -> dict[int, float]:
    """Values of one series by step."""
    return {step: value for (step, each), value in values.items() if each == name}


def test_mlflow_has_the_numbers_and_counts_in_place_of_nan(own: Path) -> None:
    """No value is NaN or infinite, and how many were is there; findings, alert and first cause are tags and a file."""
    metrics, tags, runs = of_mlflow(own / "mlflow.sqlite")
    assert {step: value for step, name, value, _ in metrics if name == "probe/run/loss"} == LOSSES
    assert all(math.isfinite(value) and abs(value) < 1e308 and not is_nan for _, _, value, is_nan in metrics)
    nans: dict[int, float] = {}
    for step, name, value, _ in metrics:
        if name == "probe/nan_values":
            nans[step] = nans.get(step, 0.0) + value
    assert [nans[step] > 0 for step in range(STEPS)] == [step >= BAD for step in range(STEPS)]
    assert f"at step {BAD}" in tags["probe/first_cause"]
    assert "NaN, first seen in " in tags[f"probe/alert/{BAD}"]
    assert [status for status, _ in runs] == ["FINISHED"]
    (path,) = own.glob("mlruns/*/*/artifacts/probe/findings.json")
    table = json.loads(path.read_text("utf-8"), parse_constant=pytest.fail)
    assert min(row[0] for row in table["data"]) == BAD


def test_swanlab_has_the_numbers(own: Path) -> None:
    """The values of each step, NaN as such; findings as a table, alert and first cause as texts."""
    values, texts, _ = of_swanlab(own)
    assert named(values, "probe/run/loss") == LOSSES
    assert math.isnan(named(values, "probe/grad_reduced/fc2.weight/norm")[STEPS - 1])
    assert any(f", step {BAD}: NaN at step" in text and "first_cause" in text for text in texts[".txt"])
    assert any("NaN, first seen in " in text and "first_cause" not in text for text in texts[".txt"])
    assert any("AnomalyNan" in text for text in texts[".json"])


def test_trackio_has_the_numbers(own: Path) -> None:
    """The values of each step, NaN as such; an alert, findings as a table, and the first cause as a text."""
    values, others, alerts = of_trackio(own / "trackio", "training")
    assert named(values, "probe/run/loss") == LOSSES
    assert math.isnan(named(values, "probe/grad_reduced/fc2.weight/norm")[STEPS - 1])
    assert f"at step {BAD}" in others["probe/summary"]
    assert {row["rule"] for row in others["probe/findings"]} == {"AnomalyNan"}
    assert [(f", step {BAD}" in title, level) for title, _, level in alerts] == [(True, "error")]


@pytest.mark.parametrize("how", ["step", "plain"])
def test_values_of_the_program_stay_where_they_are(how: str, tmp_path: Path) -> None:
    """Every loss stands at the program's own step, also if the tracker counts the steps, and the run goes on."""
    assert run_in("swanlab,trackio", tmp_path, how)["faults"] == {}
    for values in (of_swanlab(tmp_path)[0], of_trackio(tmp_path / "trackio", "program")[0]):
        assert named(values, "loss") == OWN
        assert named(values, "end") == {STEPS: 1.0}
        assert named(values, "probe/run/loss").items() <= LOSSES.items()
        assert named(values, "probe/run/loss")[STEPS - 1] == LOSSES[STEPS - 1]


def test_a_run_of_mlflow_is_joined(tmp_path: Path, tables: Path) -> None:
    """By its id, also if it begins after the monitor; the program's values are unharmed, and it ends its run."""
    assert run_in("mlflow", tmp_path, "later", tables)["faults"] == {}
    metrics, _, runs = of_mlflow(tmp_path / "mlflow.sqlite")
    assert {step: value for step, name, value, _ in metrics if name == "loss"} == OWN
    assert {step: value for step, name, value, _ in metrics if name == "probe/run/loss"} == LOSSES
    assert runs == [("FINISHED", "program")]


def test_training_goes_on_after_the_program_has_finished_its_runs(tmp_path: Path, tables: Path) -> None:
    """Its values are unharmed. MLflow takes further rows and Trackio those of steps that it has; for SwanLab they are
    counted, and the log has the reason."""
    printed = run_in("mlflow,swanlab,trackio", tmp_path, "finished", tables)
    assert printed["faults"]["tracker swanlab: rows not taken"] > 0
    assert {place.partition(":")[0] for place in printed["faults"]} == {"tracker swanlab"}
    assert "the program has finished its run; later rows are in the files: probe track" in printed["log"]
    before = {step: value for step, value in OWN.items() if step < FINISHED}
    assert named(of_swanlab(tmp_path)[0], "loss") == named(of_trackio(tmp_path / "trackio", "program")[0], "loss")
    assert named(of_swanlab(tmp_path)[0], "loss") == before
    metrics, _, runs = of_mlflow(tmp_path / "mlflow.sqlite")
    assert {step: value for step, name, value, _ in metrics if name == "loss"} == before
    assert {step: value for step, name, value, _ in metrics if name == "probe/run/loss"} == LOSSES
    assert runs == [("FINISHED", "program")]
    assert len([*tmp_path.glob("out/*/grad_reduced_*.csv")]) == STEPS


def test_what_cannot_begin_costs_its_rows_alone(tmp_path: Path) -> None:
    """SwanLab without a key asks nobody, MLflow's store of files is closed, Trackio's folder cannot be made, of
    which it warns itself. Each is named, and the files are whole."""
    wrong = {"SWANLAB_MODE": "online", "MLFLOW_TRACKING_URI": "file:./runs", "TRACKIO_DIR": "/dev/full/place"}
    printed = run_in("mlflow,swanlab,trackio", tmp_path, HOME=str(tmp_path), **wrong)
    for name in ("mlflow", "swanlab"):
        assert printed["faults"][f"tracker {name}: rows not taken"] > 0
        assert f"without it: tracker {name}" in printed["log"]
    assert "trackio failed" in printed["log"]
    assert len([*tmp_path.glob("out/*/grad_reduced_*.csv")]) == STEPS


def test_on_a_full_disk_training_goes_on(tmp_path: Path) -> None:
    """No tracker has room for its files, and each is named in the log: by the monitor or, where the tracker keeps the
    error for itself, by the tracker. Files of the monitor that fit in are whole."""
    printed = run_in(",".join(PACKAGES), tmp_path, "full", HOME=str(tmp_path))
    for name in ("wandb", "mlflow", "swanlab"):
        assert f"without it: tracker {name}: " in printed["log"]
    assert "trackio failed" in printed["log"]
    assert len([*tmp_path.glob("out/*/grad_reduced_*.csv")]) == STEPS
