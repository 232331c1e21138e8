"""Conversions to SQLite of more than a database can hold in reason."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from probe.cli import app
from probe.core.analysis.convert import csv2db as conversion
from probe.core.analysis.convert.csv2db import expected_size
from probe.core.analysis.convert.select import choose
from probe.core.csv2db import CSV2DBConfig, csv2db
from probe.core.storage.problems import Problems
from tests.core.storage.run_files import write_run


def test_the_number_of_rows_is_estimated(tmp_path: Path) -> None:
    """From the sizes of files and the length of some lines: near that of the rows that are converted."""
    for rank in range(3):
        write_run(tmp_path / "run", rank, range(50), steps_per_file=20)
    found = expected_size(choose(tmp_path / "run", None, None, None, Problems()))
    done = csv2db(CSV2DBConfig(tmp_path / "run", output_dirpath=tmp_path / "db"))
    assert found.files == done.files
    assert found.rows == pytest.approx(done.rows, rel=0.1)


def test_too_many_bytes_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    """The error has the limit, the size, and the commands for such runs; a choice of kinds is converted; the file that
    cannot be read is recorded all the same."""
    directory = write_run(tmp_path / "run", 0, range(3))
    os.truncate(next(directory.glob("actv_*.csv")), 120 * 10**9)  # a hole: it takes no room
    result = CliRunner().invoke(app, ["csv2db", str(tmp_path / "run"), "-o", str(tmp_path / "db")])
    assert result.exit_code == 2
    for told in ("at most 500,000,000 rows and 100 GB", "of 120.0 GB", "`probe pack`", "`probe sql`"):
        assert told in " ".join(result.stderr.split())
    assert not (tmp_path / "db").exists()
    chosen = ["csv2db", str(tmp_path / "run"), "-o", str(tmp_path / "db"), "--data-type-list", "grad_reduced"]
    result = CliRunner().invoke(app, chosen)
    assert result.exit_code == 1
    assert "6 rows" in result.output


def test_too_many_rows_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the estimate, whatever the bytes."""
    write_run(tmp_path, 0, range(50))
    monkeypatch.setattr(conversion, "MOST_ROWS", 100)
    with pytest.raises(ValueError, match="expected at most 100 rows"):
        csv2db(CSV2DBConfig(tmp_path, output_dirpath=tmp_path / "db"))
