"""Several runs in one directory: findings are of the run that made them, in every reader of ``anomaly.json``."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from probe.cli import app
from probe.core.analysis.anomaly_processor import main
from probe.core.output.sinks.anomaly import AnomalyFile
from probe.core.storage.run_directory import write_manifest
from tests.core.analysis.causes_data import write_rank
from tests.core.output.sink_data import context, finding
from tests.required import require

require("duckdb")


def name_of(time: str, rank: int = 0) -> str:
    return f"{time}-rank{rank}-0000000{rank}"


def start_of(time: str) -> str:
    return f"2026-12-{time[3:5]}T{time[6:].replace('-', ':')}+0800"


def attach(root: Path, time: str, rank: int = 0, first_step: int = 0, **fields: Any) -> None:
    """Write the files of a rank, without its rows."""
    directory = root / name_of(time, rank)
    directory.mkdir(parents=True)
    known = {"rank": rank, "start_time": start_of(time), "first_step": first_step, "run": 0}
    write_manifest(directory, known | fields)


def found(root: Path, time: str, *steps: int, rank: int = 0, first_step: int = 0) -> None:
    """Findings of a run."""
    of = {"run": name_of(time, rank), "start": start_of(time), "first_step": first_step}
    AnomalyFile(context(root, rank=rank, **of)).write([finding(step, rank=rank) for step in steps])


def ordered(root: Path, *words: str) -> list[tuple[int, int]]:
    """Rank and step of what the documented command keeps."""
    assert main(["-d", str(root / "anomaly_detected"), "-k", "999", *words]) == 0
    entries = json.loads((root / "anomaly_detected" / "anomaly_analyse.json").read_text())
    return [(entry["rank"], entry["step"]) for entry in entries.values()]


def test_a_healthy_second_run_has_no_findings_of_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The latest run is taken, and what was left out is counted; --run has the others."""
    for time in ("Dec03_10-00-00", "Dec03_11-00-00"):
        attach(tmp_path, time)
    found(tmp_path, "Dec03_10-00-00", 3, 4)
    assert ordered(tmp_path) == []
    told = capsys.readouterr()
    assert "0 of 0 findings of run Dec03_11-00-00-rank0-00000000 in" in told.out
    assert "2 findings left out, of other runs: --run all has them" in told.err
    assert ordered(tmp_path, "--run", "Dec03_10") == [(0, 3), (0, 4)]
    assert ordered(tmp_path, "--run", "all") == [(0, 3), (0, 4)]


def test_ranks_of_a_run_begin_at_different_moments(tmp_path: Path) -> None:
    """Their directories have other names, and are one run all the same."""
    for minute, times in ((0, (1, 3)), (9, (2, 0))):
        for rank, second in enumerate(times):
            time = f"Dec03_10-0{minute}-0{second}"
            attach(tmp_path, time, rank)
            found(tmp_path, time, minute + rank, rank=rank)
    assert ordered(tmp_path) == [(0, 9), (1, 10)]
    assert ordered(tmp_path, "--run", "Dec03_10-00-03") == [(0, 0), (1, 1)]


def test_directories_may_be_gone(tmp_path: Path) -> None:
    """A folder of findings that was copied away names their runs itself."""
    for time, step in (("Dec03_10-00-00", 3), ("Dec04_09-00-00", 4)):
        found(tmp_path, time, step)
    assert ordered(tmp_path) == [(0, 4)]
    assert ordered(tmp_path, "--run", name_of("Dec03_10-00-00")) == [(0, 3)]


def test_a_directory_that_was_renamed_keeps_its_findings(tmp_path: Path) -> None:
    """Its manifest has its start time, as the findings do."""
    for time, step in (("Dec03_10-00-00", 3), ("Dec03_11-00-00", 4)):
        attach(tmp_path, time)
        found(tmp_path, time, step)
    (tmp_path / name_of("Dec03_11-00-00")).rename(tmp_path / "Dec03_11-00-00-rank0-renamed")
    assert ordered(tmp_path) == [(0, 4)]
    assert ordered(tmp_path, "--run", "Dec03_11-00-00-rank0-renamed") == [(0, 4)]


def test_a_run_that_was_resumed_in_a_new_directory_is_one(tmp_path: Path) -> None:
    """Findings in steps that were done again are left out."""
    attach(tmp_path, "Dec03_10-00-00")
    found(tmp_path, "Dec03_10-00-00", 3, 5, 7)
    attach(tmp_path, "Dec03_12-00-00", first_step=5)
    found(tmp_path, "Dec03_12-00-00", 6, first_step=5)
    assert ordered(tmp_path) == [(0, 3), (0, 6)]


def test_two_monitors_of_a_process_are_two_runs(tmp_path: Path) -> None:
    """They begin in the same second and share a file, into which both write at once."""
    names = [f"Dec03_10-00-00-rank0-{word}" for word in ("aaaaaaaa", "bbbbbbbb")]
    for number, name in enumerate(names):
        (tmp_path / name).mkdir()
        fields = {"rank": 0, "run": number, "start_time": start_of("Dec03_10-00-00"), "first_step": 0}
        write_manifest(tmp_path / name, fields)
    files = [AnomalyFile(context(tmp_path, run=name, start=start_of("Dec03_10-00-00"))) for name in names]
    ready = threading.Barrier(2)

    def write(file: AnomalyFile, number: int) -> None:
        ready.wait()
        for step in range(400):
            file.write([finding(1000 * number + step)])

    threads = [threading.Thread(target=write, args=(file, number)) for number, file in enumerate(files)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads take turns within a write
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert ordered(tmp_path) == [(0, 1000 + step) for step in range(400)]
    assert ordered(tmp_path, "--run", names[0]) == [(0, step) for step in range(400)]


def test_files_of_older_versions_are_taken_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If no entry names its run, all count; among entries that do, they are left out and counted."""
    AnomalyFile(context(tmp_path)).write([finding(1)])
    assert ordered(tmp_path) == [(0, 1)]
    found(tmp_path, "Dec03_10-00-00", 2)
    assert ordered(tmp_path) == [(0, 2)]
    assert "1 finding left out, of unnamed runs" in capsys.readouterr().err
    assert ordered(tmp_path, "--run", "all") == [(0, 1), (0, 2)]


@pytest.mark.parametrize(("name", "said"), [("Jan01", "there is no such run"), ("Dec", "there are 2 such runs")])
def test_a_run_that_is_not_one(tmp_path: Path, name: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, and which there are."""
    for time in ("Dec03_10-00-00", "Dec04_10-00-00"):
        found(tmp_path, time, 1)
    assert main(["-d", str(tmp_path), "--run", name]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert name_of("Dec04_10-00-00") in error


def test_other_readers_do_not_report_another_run(tmp_path: Path) -> None:
    """Neither `probe anomalies` nor the report has them, although the steps are the same."""
    write_rank(tmp_path, 0, range(12), time="Dec03_10-00-00", start_time=start_of("Dec03_10-00-00"))
    write_rank(tmp_path, 0, range(12), time="Dec03_11-00-00", start_time=start_of("Dec03_11-00-00"))
    found(tmp_path, "Dec03_10-00-00", 3)
    done = CliRunner().invoke(app, ["anomalies", str(tmp_path)])
    assert (done.exit_code, "Nothing was found in what was judged" in done.stdout) == (0, True)
    shown = CliRunner().invoke(app, ["report", str(tmp_path), "-o", str(tmp_path / "page.html"), "--no-judge"])
    assert "Nothing was found" in shown.stdout
    found(tmp_path, "Dec03_11-00-00", 5)
    shown = CliRunner().invoke(app, ["report", str(tmp_path), "-o", str(tmp_path / "page.html"), "--no-judge"])
    assert "NaN at step 5 on rank 0" in shown.stdout
