"""Files that a conversion leaves behind, and its messages."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from probe.cli import app
from probe.core.analysis.convert.csv2tb import csv2tensorboard_by_step
from probe.core.csv2db import CSV2DBConfig, csv2db
from tests.core.storage.run_files import write_run
from tests.required import require


@pytest.mark.parametrize("processes", ["1", "4"])
@pytest.mark.parametrize("verb", ["csv2db", "csv2tb"])
def test_a_kind_that_the_run_lacks_is_an_error(tmp_path: Path, verb: str, processes: str) -> None:
    """A documented one, alone: those that are there are named, and nothing is left behind."""
    write_run(tmp_path / "run", 0, [0])
    output = tmp_path / "new" / "output"
    ran = CliRunner().invoke(
        app, [verb, str(tmp_path / "run"), "-o", str(output), "-j", processes, "--data-type-list", "other"]
    )
    assert ran.exit_code == 2, ran.exception
    assert "data_type_list: the run has no files of other; there are actv, grad_reduced" in ran.output
    assert not output.parent.exists()


def test_a_run_of_damaged_files_leaves_no_empty_database(tmp_path: Path) -> None:
    """One that was there before stays."""
    directory = tmp_path / "run" / "Dec03_21-34-40-rank0-0"
    directory.mkdir(parents=True)
    (directory / "actv_0-0.csv").write_text("")
    command = ["csv2db", str(tmp_path / "run"), "-o", str(tmp_path / "new" / "db")]
    ran = CliRunner().invoke(app, command)
    assert ran.exit_code == 1
    assert "nothing could be converted" in ran.output
    assert not (tmp_path / "new").exists()
    (directory / "actv_1-1.csv").write_text("vpp_stage,name,step,min\n0,a,1,2\n")
    assert "1 row of 1 file" in CliRunner().invoke(app, command).output
    (directory / "actv_1-1.csv").unlink()
    assert CliRunner().invoke(app, command).exit_code == 1
    assert (tmp_path / "new" / "db" / "monitor_metrics.db").exists()


def test_rows_in_two_formats_count_once(tmp_path: Path) -> None:
    """As CSV and Parquet; rows that only one of both has count too, and the database has all digits."""
    require("duckdb")
    write_run(tmp_path, 0, range(6), sink="parquet", steps_per_file=3)
    (late,) = tmp_path.glob("*/actv_3-5.parquet")
    late.unlink()
    write_run(tmp_path, 0, range(6), steps_per_file=3)
    done = csv2db(CSV2DBConfig(tmp_path, output_dirpath=tmp_path / "db"))
    with closing(sqlite3.connect(tmp_path / "db" / "monitor_metrics.db")) as database:
        counts = [
            database.execute(f"SELECT count(*) FROM {kind}_rows").fetchone()[0] for kind in ("actv", "grad_reduced")
        ]
        (value,) = database.execute("SELECT min FROM actv_rows WHERE step = 0 LIMIT 1").fetchone()
    assert (done.rows, counts) == (36, [24, 12])
    assert len(repr(value)) > 12


def test_functions_log_what_they_wrote(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Rows, files and the place."""
    write_run(tmp_path, 0, [0])
    with caplog.at_level(logging.INFO, "probe.convert"):
        csv2db(CSV2DBConfig(tmp_path, output_dirpath=tmp_path / "db"))
        csv2tensorboard_by_step(tmp_path, output_dirpath=tmp_path / "tb")
    assert [record.getMessage() for record in caplog.records] == [
        f"6 rows of 2 files in {tmp_path / 'db' / 'monitor_metrics.db'}",
        f"6 rows of 2 files in {tmp_path / 'tb'}",
    ]
