"""``probe track``: files of all ranks in a tracker."""

from __future__ import annotations

import math
import os
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from probe.cli import app
from probe.core.trackers import TRACKERS
from tests.cli.json_schema import answer_of
from tests.core.analysis.causes_data import bad, everything_after, write_rank, write_run
from tests.core.trackers.read_back import of_mlflow, of_swanlab, of_trackio
from tests.core.trackers.training import ran_with
from tests.core.trackers.wandb_file import WandbRun, read_run
from tests.quick_python import probe_command
from tests.required import require, require_version

pytestmark = pytest.mark.slow

require("duckdb")

ROOT = Path(__file__).parents[2]
RANKS, STEPS, BAD = 3, 10, 6


def environment(folder: Path, mode: str = "offline") -> dict[str, str]:
    """Variables of a process that has the tracker, and nobody's key."""
    path = f"{require_version('wandb-0.31.0')}{os.pathsep}{ROOT}"
    return {**os.environ, "PYTHONPATH": path, "WANDB_MODE": mode, "WANDB_SILENT": "true", "HOME": str(folder)}


def command(folder: Path, *options: str) -> list[str]:
    return probe_command("track", folder / "run", "--to", "wandb", *options)


def tracked(folder: Path, mode: str = "offline") -> subprocess.CompletedProcess[str]:
    """The end of the command."""
    return subprocess.run(
        command(folder, "--json"),
        cwd=folder,
        env=environment(folder, mode),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> WandbRun:
    """What W&B has of a run of three ranks in which one layer of rank 1 becomes NaN."""
    folder = tmp_path_factory.mktemp("track")
    first = bad(("actv", 1, BAD, "b.output"))
    write_run(folder / "run", RANKS, STEPS, everything_after(BAD, [1], first))
    done = tracked(folder)
    assert done.returncode == 0, done.stderr
    answer = answer_of("track", done.stdout)
    assert (answer["steps"], answer["tracker"]) == (STEPS, "wandb")
    return read_run(folder / "wandb")


def test_all_ranks_are_there(sent: WandbRun) -> None:
    """Every step once, with the largest value of a layer over ranks; NaN of one rank is shown and counted."""
    rows = {row["probe/step"]: row for row in sent.rows if "probe/actv/norm_max" in row}
    assert sorted(rows) == list(range(STEPS))
    assert [rows[step]["probe/actv/nan_layers"] > 0 for step in range(STEPS)] == [step >= BAD for step in range(STEPS)]
    assert math.isnan(rows[BAD]["probe/actv/b.output/norm"])
    assert "(rank 1)" in sent.summary["probe/actv/worst"]


def test_the_first_cause_is_that_of_the_analysis(sent: WandbRun) -> None:
    """In the summary; the incident has an alert, the findings a table, and the report is kept."""
    assert "b.output" in sent.summary["probe/first_cause"]
    assert "rank 1" in sent.summary["probe/first_cause"]
    (alert,) = sent.alerts
    assert f"NaN in b.output, step {BAD}, rank 1" in alert[0] + alert[1]
    assert sent.summary["probe/findings/nrows"] > 1
    assert sent.artifacts.count("probe") == 1


ALL = """
from probe.cli import app
for tracker in ("mlflow", "swanlab", "trackio"):
    assert app(["track", "run", "--to", tracker, "--project", "sent"], standalone_mode=False) == 0
"""


def test_other_trackers_get_the_same(tmp_path: Path) -> None:
    """Each step of all ranks, the first cause of the analysis, and the report."""
    write_run(tmp_path / "run", RANKS, STEPS, everything_after(BAD, [1], bad(("actv", 1, BAD, "b.output"))))
    done = ran_with(
        "mlflow,swanlab,trackio",
        ["-c", ALL],
        tmp_path,
        MLFLOW_TRACKING_URI=f"sqlite:///{tmp_path / 'mlflow.sqlite'}",
        SWANLAB_MODE="offline",
        TRACKIO_DIR=str(tmp_path / "trackio"),
    )
    assert done.returncode == 0, done.stderr
    metrics, tags, runs = of_mlflow(tmp_path / "mlflow.sqlite")
    drawn, texts, _ = of_swanlab(tmp_path)
    kept, others, alerts = of_trackio(tmp_path / "trackio", "sent")
    for steps in (
        [step for step, name, _, _ in metrics if name == "probe/actv/nan_layers"],
        [step for step, name in drawn if name == "probe/actv/nan_layers"],
        [step for step, name in kept if name == "probe/actv/nan_layers"],
    ):
        assert sorted(steps) == list(range(STEPS))
    place = f"NaN in b.output, step {BAD}, rank 1"
    assert runs == [("FINISHED", "sent")]
    assert place in tags[f"probe/alert/{BAD}"]
    assert any(place in text for text in texts[".txt"])
    assert any(place in title for title, _, _ in alerts)
    (summary,) = (text for text in texts[".txt"] if "first_cause" in text)
    for cause in (tags["probe/first_cause"], others["probe/summary"], summary):
        assert "b.output" in cause
        assert "rank 1" in cause
    reports = [*tmp_path.glob("mlruns/*/*/artifacts/probe/report.html"), *tmp_path.glob("swanlog/run-*/media/*/*.html")]
    blobs = (path for path in (tmp_path / "trackio").rglob("*") if path.is_file())
    reports += (path for path in blobs if path.read_bytes()[:9].lower() == b"<!doctype")  # its name is a digest
    assert [path.stat().st_size > 100_000 for path in reports] == [True] * 3


def test_wrong_use_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tracker that there is not, or that is not installed: what there is, and what to do."""
    write_run(tmp_path / "run", 1, 2)
    monkeypatch.setitem(TRACKERS, "mlflow", TRACKERS["mlflow"]._replace(package="not_there"))
    done = CliRunner().invoke(app, ["track", str(tmp_path / "run"), "--to", "mlflow"])
    assert done.exit_code == 2
    assert "probe track --to mlflow needs not_there" in done.stderr
    assert 'pip install -e ".[mlflow]"' in done.stderr
    for options, expected in ((["--to", "paper"], "expected one of wandb"), ([], "got nothing")):
        done = CliRunner().invoke(app, ["track", str(tmp_path / "run"), *options])
        assert done.exit_code == 2
        assert expected in done.stderr


def test_without_a_key_the_command_ends(tmp_path: Path) -> None:
    """With what to do, and without a question."""
    write_run(tmp_path / "run", 1, 2)
    done = tracked(tmp_path, "online")
    assert done.returncode == 2
    assert "wandb login" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_growing_run_is_followed_to_its_end(tmp_path: Path) -> None:
    """Steps that all ranks have finished are there while it grows, each once, and all of them after its end."""
    for rank in range(2):
        write_rank(tmp_path / "run", rank, range(4 + rank), world_size=2)
    running = subprocess.Popen(
        command(tmp_path, "--follow", "--seconds", "0.1", "--no-report"),
        cwd=tmp_path,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        text=True,
    )
    with running:
        assert running.stdout is not None
        assert running.stdout.readline() == "step 2\n"
        for rank in range(2):
            write_rank(tmp_path / "run", rank, range(STEPS), world_size=2, end_time="2026-12-03T21:44:40+0800")
        assert f"step {STEPS - 1}\n" in running.stdout.read()
    assert running.returncode == 0
    rows = [row["probe/step"] for row in read_run(tmp_path / "wandb").rows if "probe/actv/norm_max" in row]
    assert rows == list(range(STEPS))
