"""Files and directories that were copied next to the originals."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from probe.core.csv2db import CSV2DBConfig, csv2db
from probe.core.storage.directories import last_run
from probe.core.storage.problems import Problems
from probe.core.storage.run_directory import write_manifest
from tests.core.storage.run_files import write_run
from tests.core.storage.test_damaged_files import commands, ended
from tests.required import require

pytestmark = pytest.mark.slow

require("duckdb")


def test_a_copied_directory_is_no_other_run(tmp_path: Path) -> None:
    """The run keeps all its ranks, and the copy is named."""
    for rank in range(2):
        directory = write_run(tmp_path, rank, range(3))
        about = {"rank": rank, "world_size": 2, "run": 0, "start_time": "2025-12-03T21:34:40+0800"}
        write_manifest(directory, {**about, "cost_seconds": {"hooks": 0.123456 + rank}})
    copy = tmp_path / "Copy of Dec03_21-34-40-rank0-00000000"
    shutil.copytree(tmp_path / "Dec03_21-34-40-rank0-00000000", copy)
    problems = Problems()
    run = last_run(tmp_path, problems)
    assert (run.ranks, run.missing, len(run.directories)) == ((0, 1), (), 2)
    assert problems.lines() == [f"{copy}: a copy of Dec03_21-34-40-rank0-00000000: left out"]
    assert csv2db(CSV2DBConfig(tmp_path, output_dirpath=tmp_path / "db")).rows == 2 * 3 * 6


def test_copied_files_are_named(tmp_path: Path) -> None:
    """Under a name that no file of ours has; under one that some have, rows come twice, and the later are taken."""
    directory = write_run(tmp_path / "run", 0, range(3))
    shutil.copy(directory / "actv_0-0.csv", directory / "actv_0-0 (copy).csv")
    shutil.copy(directory / "actv_1-1.csv", directory / "actv_01-1.csv")
    for command, arguments in commands(tmp_path / "run", tmp_path / "run", tmp_path).items():
        result = ended(arguments)
        text = result.output.replace("\n", "")
        assert result.exit_code == 0, (command, text)
        if command in ("anomalies", "csv2db", "csv2tb"):
            assert "actv_0-0 (copy).csv: expected a name such as actv_0-0.csv" in text, command
        if command == "anomalies":
            assert "step 1 has 4 rows twice: the later ones are taken" in text
