"""``probe pack`` as people and scripts use it; other commands give the same bytes on a packed run as on the run."""

from __future__ import annotations

import json
import math
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from probe.cli import app
from probe.core.naming import STEP_SECONDS, TOKENS_PER_SECOND
from probe.core.records import Batch, Key
from probe.core.storage.layout import COSTS
from probe.core.storage.packed.pack import pack
from tests.core.analysis.causes_data import bad, everything_after, write_run
from tests.core.output.sink_data import batch
from tests.required import require

pytestmark = pytest.mark.slow

require("duckdb")

RANKS, STEPS = 2, 14


def of_run(rank: int, step: int) -> list[Batch]:
    """Numbers of the run: a loss that becomes NaN, and seconds."""
    names = ("loss", STEP_SECONDS, TOKENS_PER_SECOND)
    numbers = {"value": [math.nan if step > 9 else 2 / (step + 1), 1 + rank / 100, 1000.0]}
    return [batch("run", step, numbers, keys=tuple(map(Key, names)))]


def entry(rank: int, run: str, step: int) -> dict[str, Any]:
    """A finding as a run dumps it."""
    tag = f"0:b.weight/rank{rank}/post_grad"
    message = f"Rule AnomalyNan reports anomaly signal in ('{tag}', 'norm') at step {step}, current value nan."
    about = {"rank": rank, "step": step, "micro_step": 0, "pp_stage": 0, "vpp_stage": 0, "call_id": 3}
    return {**about, "tag_name": tag, "message": message, "group_mates": [0], "rule": "AnomalyNan", "run": run}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of two ranks with NaN from a step on, findings, costs, stacks, and readings of a machine."""
    root = tmp_path / "run"
    root.mkdir()
    change = everything_after(9, range(RANKS), bad(("actv", 1, 9, "b.output")))
    groups = {"groups": lambda rank: {"data_parallel": list(range(RANKS))}, "config": {"eps": 1e-8, "ndigits": 6}}
    write_run(root, RANKS, STEPS, change, micro_steps=2, extra=of_run, findings=3, **groups)
    for rank in range(RANKS):
        directory = root / f"Dec03_21-34-40-rank{rank}-0000000{rank}"
        costs = [
            {"step": step, "hooks_seconds": 0.01 * rank, "drain_seconds": 0.02, "device_seconds": 0.0}
            for step in range(5)
        ]
        lines = [json.dumps({**cost, "overhead": 0.013}) + "\n" for cost in costs]
        (directory / COSTS).write_text("".join([*lines, "torn"]))
        (directory / "stack_info.csv").write_text("module,stack\na,train.py[1]\n")
        folder = root / "anomaly_detected" / f"rank{rank}"
        folder.mkdir(parents=True)
        (folder / "anomaly.json").write_text(json.dumps({f"k{n}": entry(rank, directory.name, n) for n in (9, 10)}))
    reading = {"time": 1.8e9, "devices": [{"id": "0", "name": "GPU", "utilization_percent": 50.0}], "step": 3}
    (root / "performance.jsonl").write_text(json.dumps(reading) + "\n")
    return root


def outputs(root: Path, out: Path) -> dict[str, Any]:
    """Exit codes, outputs and files of every command that reads a run."""
    out.mkdir()
    commands = {
        "anomalies": ["anomalies", root, "-o", out / "first.json"],
        "json": ["anomalies", root, "--json", "--steps", "3-11"],
        "report": ["report", root, "-j", "1", "-o", out / "report.html"],
        "own": ["report", root, "-j", "1", "-o", out / "own.html", "--no-judge"],
        "compare": ["compare", root, root, "--step-offset", 1, "-o", out / "compare.html"],
        "performance": ["performance", root],
        "csv2db": ["csv2db", root, "-j", "1", "-o", out / "db"],
        "csv2tb": ["csv2tb", root, "-j", "1", "-o", out / "tb"],
    }
    found: dict[str, Any] = {}
    for name, command in commands.items():
        done = CliRunner().invoke(app, [str(word) for word in command])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        found[name] = done.exit_code, done.stdout, done.stderr
    for path in sorted(path for path in out.rglob("*") if path.is_file()):
        events = re.sub(r"(tfevents\.\d+)\..*", r"\1", path.relative_to(out).as_posix())
        found.setdefault(events, []).append(path.read_bytes())
    return found


def run_pack(*args: object) -> Any:
    result = CliRunner().invoke(app, ["pack", *map(str, args)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_every_command_gives_the_same_bytes(run: Path, tmp_path: Path) -> None:
    """On the run, and on the run packed into many files in its place: texts, pages, the database and the curves."""
    expected = outputs(run, tmp_path / "out")
    (tmp_path / "out").rename(tmp_path / "before")
    pack(run, tmp_path / "packed", block_bytes=20_000)
    run.rename(tmp_path / "elsewhere")
    (tmp_path / "packed").rename(run)
    found = outputs(run, tmp_path / "out")
    assert found.keys() == expected.keys()
    for name, what in expected.items():
        assert found[name] == what, name
    assert expected["anomalies"][0] == 1
    assert expected["anomalies"][1].startswith("critical: NaN in b.output, step 9, rank 1\n")
    assert expected["csv2db"][0] == 0
    assert len(expected) > 8 + 3 + RANKS * 7


def test_a_database_goes_on_with_a_packed_run(run: Path, tmp_path: Path) -> None:
    """Files that it holds are the same ones: none is converted twice."""
    CliRunner().invoke(app, ["csv2db", str(run), "-o", str(tmp_path / "db")])
    pack(run, tmp_path / "packed")
    done = CliRunner().invoke(app, ["csv2db", str(tmp_path / "packed"), "-o", str(tmp_path / "db")])
    assert done.exit_code == 0
    assert "0 rows of 0 files" in done.stdout
    assert "were there already" in done.stdout
    with closing(sqlite3.connect(tmp_path / "db" / "monitor_metrics.db")) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_packed_is_0(run: Path, tmp_path: Path) -> None:
    """With a line about what there was and is, also with several processes."""
    done = run_pack(run, "-o", tmp_path / "one", "--check")
    assert (done.exit_code, done.stderr) == (0, "")
    assert re.fullmatch(r"[\d,]+ rows of 2 ranks: 42 files with .* MB are 7 files with .* MB in .*one\n", done.stdout)
    assert run_pack(run, "-o", tmp_path / "two", "-j", 2).exit_code == 0
    files = [path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file()]
    assert [(tmp_path / "one" / path).read_bytes() == (tmp_path / "two" / path).read_bytes() for path in files] == [
        True
    ] * len(files)


def test_data_that_are_left_out_are_1(run: Path, tmp_path: Path) -> None:
    """They are named by their places in the packed run."""
    path = sorted(run.glob("*/actv_0-4.csv"))[0]
    path.write_text(path.read_text() + "0,torn")
    done = run_pack(run, "-o", tmp_path / "out")
    assert done.exit_code == 1
    assert "the last line is not finished (6 bytes): left out" in done.stderr


def test_wrong_use_is_2(run: Path, tmp_path: Path) -> None:
    """No run, no place for a packed one."""
    assert run_pack(tmp_path / "missing", "-o", tmp_path / "out").exit_code == 2
    done = run_pack(run, "-o", run / "packed")
    assert done.exit_code == 2
    assert "a source is never changed" in done.stderr
    assert not (run / "packed").exists()
    run_pack(run, "-o", tmp_path / "out")
    assert "there is a packed run already" in run_pack(run, "-o", tmp_path / "out").stderr


def test_a_folder_that_cannot_be_written_is_1(run: Path, tmp_path: Path) -> None:
    """With the folder and the reason."""
    (tmp_path / "file").write_text("")
    done = run_pack(run, "-o", tmp_path / "file" / "out")
    assert done.exit_code == 1
    assert str(tmp_path / "file" / "out") in done.stderr


def test_a_run_that_has_ended_is_followed_to_its_end_at_once(run: Path, tmp_path: Path) -> None:
    """As without --follow."""
    for path in run.glob("*/manifest.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "end_time": "2026-12-03T22:00:00+0800"}))
    done = run_pack(run, "-o", tmp_path / "out", "--follow", "--every", 0.1)
    assert done.exit_code == 0
    assert "rows of 2 ranks: 42 files" in done.stdout
