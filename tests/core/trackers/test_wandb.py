"""Runs in W&B: offline, read back from its files."""

from __future__ import annotations

import csv
import json
import math
import socket
import sys
from pathlib import Path
from types import ModuleType

import pytest

from probe.core.trackers import TrackedRow, TrackerTarget
from probe.core.trackers.wandb import WandbTracker
from tests.core.trackers.training import BAD, STEPS, trained
from tests.core.trackers.wandb_file import WandbRun, read_run

OFFLINE = {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a run without a run of the program's has left its files."""
    folder = tmp_path_factory.mktemp("own")
    assert trained("wandb", folder, "report", **OFFLINE)["faults"] == {}
    return folder


@pytest.fixture(scope="module")
def own(folder: Path) -> WandbRun:
    return read_run(folder / "wandb")


def test_numbers_are_those_of_the_files(own: WandbRun, folder: Path) -> None:
    """Each norm of each step, and the loss, under names of their own, on the axis of the step."""
    found = {(row["probe/step"], name): value for row in own.rows for name, value in row.items()}
    written = 0
    for path in folder.glob("out/*/grad_reduced_*.csv"):
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                value = found[int(row["step"]), f"probe/grad_reduced/{row['name']}/norm"]
                assert value == pytest.approx(float(row["norm"]), rel=1e-5, nan_ok=True)
                written += 1
    assert written == STEPS * 3
    assert [found[step, "probe/run/loss"] for step in range(STEPS)] == [step / 4 for step in range(STEPS)]
    assert own.metrics["probe/*"] == "probe/step"


def test_a_planted_nan_is_named(own: WandbRun, folder: Path) -> None:
    """Its layer and step are in an alert, the table of findings, the summary, and the counts of its signal."""
    (alert,) = [each for each in own.alerts if f", step {BAD}" in each[0]]
    assert alert[2] == "ERROR"
    assert f"step {BAD}: NaN at step {BAD}" in own.summary["probe/first_cause"]
    layer = own.summary["probe/grad_reduced/worst"]
    assert layer in {"fc.weight", "fc.bias", "fc2.weight"}
    rows = {row["probe/step"]: row for row in own.rows if "probe/grad_reduced/nan_layers" in row}
    assert [rows[step]["probe/grad_reduced/nan_layers"] > 0 for step in range(STEPS)] == [
        step >= BAD for step in range(STEPS)
    ]
    assert math.isnan(rows[BAD][f"probe/grad_reduced/{layer}/norm"])
    table = own.summary["probe/findings/path"]
    (path,) = folder.glob(f"wandb/offline-run-*/files/{table}")
    kept = json.loads(path.read_text("utf-8"))
    found = [dict(zip(kept["columns"], row, strict=True)) for row in kept["data"]]
    assert min(row["step"] for row in found) == BAD
    assert {row["rule"] for row in found} == {"AnomalyNan"}


def test_the_report_is_kept(own: WandbRun) -> None:
    """As an artifact, beside the tables of findings."""
    assert own.artifacts.count("probe") == 1


@pytest.mark.parametrize("how", ["step", "plain"])
def test_a_run_of_the_program_keeps_all_its_values(how: str, tmp_path: Path) -> None:
    """Every loss stands at the program's own step, which nothing else advances, and the run is not finished."""
    assert trained("wandb", tmp_path, how, **OFFLINE)["faults"] == {}
    run = read_run(tmp_path / "wandb")
    losses = {row["_step"]: row["loss"] for row in run.rows if "loss" in row}
    assert losses == {step: step for step in range(STEPS)}
    assert run.project == "the program's"
    assert [row["_step"] for row in run.rows if "end" in row] == [STEPS if how == "plain" else STEPS - 1]
    shown = [row for row in run.rows if "probe/step" in row]
    assert shown[-1]["probe/step"] == STEPS - 1
    # the program may log between the rows about tensors of a step and the numbers of that step
    numbers = [row for row in shown if "probe/run/loss" in row]
    assert numbers
    assert all(row["probe/run/loss"] == row["probe/step"] / 4 for row in numbers)
    assert "probe/first_cause" in run.summary


class JoinedRun:
    """A run of W&B's: rows without ``commit`` are put together until the program logs, which it does once on its own
    thread while a row is on its way."""

    def __init__(self) -> None:
        self.step, self.shown, self._waiting, self._meanwhile = 0, list[dict[str, float]](), dict[str, float](), True

    def define_metric(self, *_: object, **__: object) -> None:
        """Take any."""

    def log(self, row: dict[str, float], commit: bool) -> None:
        assert not commit
        if self._meanwhile:
            self._meanwhile = False
            self.program_logs()
        self._waiting |= row

    def program_logs(self) -> None:
        self.shown.append(self._waiting)
        self.step, self._waiting = self.step + 1, {}


def test_values_of_two_steps_are_never_in_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the program logs between the question for its step and the row: the next row has fewer names, and would
    leave values of the other step beside its own."""
    run = JoinedRun()
    monkeypatch.setitem(sys.modules, "wandb", ModuleType("wandb"))
    monkeypatch.setattr(sys.modules["wandb"], "run", run, raising=False)
    tracker = WandbTracker(TrackerTarget("project", "run", {}))
    tracker.begin()
    tracker.log([TrackedRow(0, 0.0, {"loss": 0.0, "norm": 0.5})])
    tracker.log([TrackedRow(1, 0.0, {"norm": 1.5})])
    run.program_logs()
    tracker.log([TrackedRow(1, 0.0, {"loss": 1.0})])
    run.program_logs()
    assert run.shown[1:] == [
        {"loss": 0.0, "norm": 0.5, "probe/step": 0},
        {"loss": 1.0, "norm": 1.5, "probe/step": 1},
    ]


def test_training_goes_on_after_the_program_has_finished_its_run(tmp_path: Path) -> None:
    """Later rows are counted, and the log has the reason: probe's own, or W&B's while it finishes."""
    printed = trained("wandb", tmp_path, "finished", **OFFLINE)
    assert printed["faults"]["tracker wandb: rows not taken"] > 0
    assert "without it: tracker wandb" in printed["log"]
    assert "finished" in printed["log"]


def test_without_a_key_nobody_is_asked_for_one(tmp_path: Path) -> None:
    """Training goes on, and the log says what to do."""
    printed = trained("wandb", tmp_path, HOME=str(tmp_path), WANDB_MODE="online")
    assert printed["faults"]["tracker wandb: TrackerEnded"] == 1
    assert "wandb login" in printed["log"]
    assert list(tmp_path.glob("out/*/grad_reduced_*.csv"))


def test_a_server_that_never_answers_costs_its_rows_alone(tmp_path: Path) -> None:
    """Training ends, with whole files; the rows are counted."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = {"WANDB_BASE_URL": f"http://127.0.0.1:{silent.getsockname()[1]}", "WANDB_API_KEY": "a" * 40}
        place |= {"WANDB_ERROR_REPORTING": "false"}  # W&B would try to send its own errors at the end for ten seconds
        printed = trained("wandb", tmp_path, WANDB_MODE="online", WANDB_INIT_TIMEOUT="1", **place)
    assert printed["faults"]["tracker wandb: rows not taken"] > 0
    assert len(list(tmp_path.glob("out/*/grad_reduced_*.csv"))) == STEPS
