"""``probe performance``: what it prints and writes, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from probe.cli import app
from probe.core.analysis.performance.summary import duration, size
from probe.core.naming import STEP_SECONDS
from tests.core.analysis.performance_data import write_calls, write_costs, write_rank
from tests.required import require

require("duckdb")

MEMORY = "gpu_memory_\x1b[31m[bold]"
"""Number whose name would move a terminal's cursor, and is markup."""


def run(*words: object) -> Result:
    return CliRunner().invoke(app, ["performance", *map(str, words)])


def write(root: Path, slow: float = 1.0, **manifest: object) -> None:
    """A run of two ranks that is ``slow`` times as slow from step 120 to step 179."""
    for rank in range(2):

        def numbers(step: int) -> dict[str, float]:
            seconds = 0.5 * (slow if 120 <= step < 180 else 1.0)
            values = {STEP_SECONDS: seconds, "throughput": 16 / seconds, "loss": 2.0, "learning_rate": 1e-3}
            return {**values, "phase/data_seconds": 0.125, "gpu_utilization": 100.0, MEMORY: 3e9}

        directory = write_rank(root, rank, range(240), numbers, **manifest)
        write_calls(directory, [(step, "all_reduce.ranks0-1.train.py[9].post", 2, 2**20, 0.25) for step in (3, 7)])
        write_costs(directory, [(step, 0.25, 0.02) for step in (3, 7)])


def test_nothing_found(tmp_path: Path) -> None:
    """Exit code 0; every part of the performance is shown, in plain text."""
    write(tmp_path)
    done = run(tmp_path)
    assert done.exit_code == 0, done.output
    for part in (
        "2 ranks, steps 0 to 239, 2 min 0 s of training",
        "A step takes 0.5 s in the median",
        "No drop of throughput",
        "Efficiency: 100 of 100, Excellent",
        "at most 2 % of training's time (rank 0), 1000 ms in a collected step",
        "Communication by call site (2 sampled steps)",
        "all_reduce",
        "train.py[9]",
        "50.0 %",
        "4 MiB",
        "Time by phase",
        "25.0 %",
        "Learning rate and loss",
        "gpu_memory_\\x1b[31m[bold]",
    ):
        assert part in done.stdout, part
    assert "\x1b" not in done.stdout


def test_a_drop(tmp_path: Path) -> None:
    """Exit code 1 and its very steps; JSON has the same."""
    write(tmp_path, slow=2.0)
    done, machine = run(tmp_path), run(tmp_path, "--json")
    assert (done.exit_code, machine.exit_code) == (1, 1)
    assert "Drop: steps 120 to 179, 2.00 times as slow (16 instead of 32 samples a second and rank)" in done.stdout
    found = json.loads(machine.stdout)
    assert [(drop["first_step"], drop["last_step"], drop["factor"]) for drop in found["throughput"]["drops"]] == [
        (120, 179, 2.0)
    ]
    assert found["found"] == ["drop"]
    assert found["efficiency"]["score"] == pytest.approx(0.6 * 100 + 0.4 * 100 * (240 * 16 / 150) / 32)


def test_the_last_hours(tmp_path: Path) -> None:
    """A drop that ended before them is none of theirs; one that reaches into them is."""
    write(tmp_path, slow=2.0)
    late = run(tmp_path, "--hours", 25 / 3600, "--json")
    assert late.exit_code == 0
    assert json.loads(late.stdout)["steps"]["first"] == 190
    assert run(tmp_path, "--hours", 35 / 3600).exit_code == 1


def test_the_file(tmp_path: Path) -> None:
    """``-o`` writes the JSON beside the text; the keys are those that the guide documents."""
    write(tmp_path)
    out = tmp_path / "performance.json"
    done = run(tmp_path, "-o", out)
    assert done.exit_code == 0
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found == json.loads(run(tmp_path, "--json").stdout)
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "performance.md").read_text(encoding="utf-8")
    assert [key for key in found if f"`{key}`" not in guide] == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--hours", "0"], "--hours: expected a number above 0, got 0.0"),
        (["--hours", "nan"], "--hours: expected a number above 0, got nan"),
        (["-o", "missing/performance.json"], "expected the name of a file in a directory that exists"),
    ],
)
def test_wrong_use(tmp_path: Path, options: list[str], text: str) -> None:
    """Exit code 2, and a line about what is wrong, before anything is read."""
    done = run(tmp_path, *options)
    assert done.exit_code == 2
    assert text in done.stderr


def test_no_run_and_no_numbers(tmp_path: Path) -> None:
    """Exit code 2 with advice."""
    assert run(tmp_path).exit_code == 2
    write_rank(tmp_path, 0, range(5), lambda step: {"loss": 1.0})
    done = run(tmp_path)
    assert done.exit_code == 2
    assert "set run.enable: true" in done.stderr


def test_data_that_cannot_be_read(tmp_path: Path) -> None:
    """The rest is shown, the problem is listed, and the exit code is 1."""
    write(tmp_path)
    path = next(tmp_path.glob("*-rank0-*/run_100-199.csv"))
    path.write_text(path.read_text(encoding="utf-8").replace("0.125", "broken", 1), encoding="utf-8")
    done = run(tmp_path)
    assert done.exit_code == 1
    assert f"{path}:" in done.stderr
    assert "No drop of throughput" in done.stdout


def test_a_missing_rank_is_a_problem(tmp_path: Path) -> None:
    """A rank that the manifest names and that has written nothing."""
    write(tmp_path, world_size=3)
    done = run(tmp_path)
    assert done.exit_code == 1
    assert "expected ranks 2 too" in done.stderr


def test_units() -> None:
    """Bytes by powers of 1024; hours, minutes and seconds."""
    assert [size(value) for value in (0, 1023, 1024, 3 * 2**40, float("nan"))] == [
        "0 B",
        "1023 B",
        "1 KiB",
        "3 TiB",
        "unknown",
    ]
    assert [duration(seconds) for seconds in (2.5, 75.0, 7260.0)] == ["2.5 s", "1 min 15 s", "2 h 1 min"]
