"""Databases of ranks, read as their other files are: the same rows, and what is wrong with one is named."""

from __future__ import annotations

import math
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe.core.output.sinks import SINKS
from probe.core.records import Batch, Key
from probe.core.storage import sqlite_reader
from probe.core.storage.batches import StoredStep, steps
from probe.core.storage.directories import last_run
from probe.core.storage.problems import Problems
from tests.core.output.sink_data import batch, context, snapshot
from tests.core.output.test_sinks_killed import MANY, ROWS, announced, writing
from tests.required import require

require("duckdb")

from probe.core.storage.duckdb_reader import Rows  # noqa: E402 - needs DuckDB

FORWARD = (Key("a", "input"), Key("a", "output"), Key("b", "output", call=1), Key("b", "output", micro_step=1, stage=2))
NAME = "Dec03_21-34-40-rank0-00000000"


def step_of(step: int) -> list[Batch]:
    """Activations, their gradients the other way round, and gradients with what no database holds as it is."""
    low, high = np.random.default_rng(step).standard_normal((2, 4))
    low[step % 4] = (math.nan, math.inf, -math.inf, 1e-300)[step % 4]
    numbers = {"min": low, "max": high}
    return [
        batch("actv", step, numbers, keys=FORWARD, micro_stepped=True),
        batch("actv_grad", step, numbers, keys=FORWARD[1::-1] + FORWARD[:1:-1], micro_stepped=True),
        batch("grad_reduced", step, {"min": low[:2], "max": high[:2]} if step % 3 else {"max": high[:2]}),
    ]


def write(root: Path, sink: str, numbers: range, name: str = NAME, rank: int = 0) -> Path:
    """The directory of a rank."""
    directory = root / name
    fields: dict[str, Any] = {"directory": directory, "rank": rank, "steps_per_file": 5}
    of_run = SINKS[sink](context(root, run_numbers=True, **fields))
    of_run.open()
    for step in numbers:
        of_run.write(snapshot(step, batch("run", step, {"value": [0.5]}), ops=("value",)))
    of_run.close()
    writer = SINKS[sink](context(root, **fields))
    writer.open()
    for step in numbers:
        first, *rest = step_of(step)
        writer.write(snapshot(step, first, *rest, ops=("min", "max") if step % 3 else ("max",)))
    writer.close()
    return directory


def read(root: Path, rank: int = 0) -> tuple[list[StoredStep], list[str]]:
    """All steps of a rank, and what is wrong with its files."""
    problems = Problems()
    with Rows(last_run(root, problems).directories, problems) as rows:
        found = list(steps(rows, rank))
    return found, [str(problem) for problem in problems.kept]


def plain(found: list[StoredStep]) -> list[Any]:
    """Steps as what can be compared."""
    return [
        (step.step, sorted(step.ops), b.signal, b.keys, b.shapes, b.dtypes, b.micro_stepped, b.order.tolist(),
         {op: [repr(number) for number in column.tolist()] for op, column in b.columns.items()})
        for step in found for b in step.batches
    ]  # fmt: skip


def execute(directory: Path, *statements: str) -> None:
    with closing(sqlite3.connect(directory / "monitor_metrics.db", isolation_level=None)) as database:
        for statement in statements:
            database.execute(statement)


def test_rows_are_those_of_the_other_formats(tmp_path: Path) -> None:
    """Every number with all its digits, names, shapes, micro steps and the order of rows, as in Parquet files."""
    for sink in ("parquet", "sqlite"):
        write(tmp_path / sink, sink, range(498, 512))
    (of_parquet, _), (of_sqlite, wrong) = read(tmp_path / "parquet"), read(tmp_path / "sqlite")
    assert plain(of_sqlite) == plain(of_parquet)
    assert len(of_sqlite) == 14
    assert wrong == []


def test_what_files_hold_too_is_there_once(tmp_path: Path) -> None:
    """CSV files go before the database, whose steps before, between and after theirs are added in order."""
    for name, numbers in (("sqlite", range(12)), ("csv", range(2, 4)), ("csv", range(8, 10))):
        write(tmp_path, name, numbers)
    found, wrong = read(tmp_path)
    assert [step.step for step in found] == list(range(12))
    assert [len(step.batches) for step in found] == [3] * 12
    assert wrong == []


def test_pieces_end_with_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few rows are taken at a time, no step is torn."""
    write(tmp_path, "sqlite", range(9))
    whole, _ = read(tmp_path)
    monkeypatch.setattr(sqlite_reader, "PIECE", 5)
    assert plain(read(tmp_path)[0]) == plain(whole)


def test_an_older_layout_is_read(tmp_path: Path) -> None:
    """A database without the order of rows has them by the number of their targets."""
    directory = write(tmp_path, "sqlite", range(3))
    execute(directory, "DROP TABLE metric_targets")
    found, wrong = read(tmp_path)
    assert [b.keys for b in found[0].batches if b.signal == "actv_grad"] == [FORWARD]
    assert [b.micro_stepped for b in found[0].batches] == [True, True, False]
    assert wrong == []


def test_a_killed_run_is_read_and_its_directory_left_as_it_was(tmp_path: Path) -> None:
    """Rows that are only in the write-ahead log are there; nothing is written beside the database."""
    with writing("sqlite", tmp_path, MANY) as process:
        last = announced(process, 5)
    directory = (tmp_path / "run").rename(tmp_path / NAME)
    before = {path.name: path.read_bytes() for path in directory.iterdir() if not path.name.endswith("-shm")}
    assert "monitor_metrics.db-wal" in before
    found, wrong = read(tmp_path)
    assert [step.step for step in found][: last + 1] == list(range(last + 1))
    assert {len(b) for step in found for b in step.batches} == {ROWS}
    assert wrong == []
    assert {p.name: p.read_bytes() for p in directory.iterdir() if not p.name.endswith("-shm")} == before


def test_an_unfinished_transaction_is_undone_in_a_copy(tmp_path: Path) -> None:
    """If a journal has to be rolled back before anything can be read, the run's own files stay as they are."""
    directory = write(tmp_path, "sqlite", range(40))
    killed = (
        "import os, sqlite3, sys\n"
        "database = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "for what in ('PRAGMA cache_size=1', 'BEGIN', 'UPDATE metric_1_step_0_49999 SET max = 7'):\n"
        "    database.execute(what)\n"
        "os._exit(0)\n"
    )
    whole, _ = read(tmp_path)
    path = directory / "monitor_metrics.db"
    subprocess.run([sys.executable, "-c", killed, str(path)], check=True)
    assert (directory / "monitor_metrics.db-journal").stat().st_size
    before = path.read_bytes()
    found, wrong = read(tmp_path)
    assert plain(found) == plain(whole)
    assert wrong == []
    assert path.read_bytes() == before


def test_a_locked_database_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is left out after a while; the other ranks are read."""
    monkeypatch.setattr(sqlite_reader, "LOCKED_SECONDS", 0.05)
    directory = write(tmp_path, "sqlite", range(3))
    write(tmp_path, "sqlite", range(3), "Dec03_21-34-40-rank1-00000001", rank=1)
    with closing(sqlite3.connect(directory / "monitor_metrics.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        found, wrong = read(tmp_path, 1)
    assert len(found) == 3
    assert any("monitor_metrics.db" in line and "locked" in line and "left out" in line for line in wrong)


def garbage(path: Path) -> None:
    path.write_bytes(os.urandom(4096))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:6000])


def foreign(path: Path) -> None:
    path.unlink()
    execute(path.parent, "CREATE TABLE photos (name TEXT)")


def newer(path: Path) -> None:
    execute(path.parent, "UPDATE global_stats SET stat_value = 9 WHERE stat_name = 'schema'")


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def without_a_column(path: Path) -> None:
    path.unlink()
    execute(
        path.parent,
        "CREATE TABLE monitoring_targets (target_id, target_name, vpp_stage, micro_step, call)",
        "CREATE TABLE monitoring_metrics (metric_id, metric_name)",
        "CREATE TABLE tensor_forms (form_id, shape, dtype, coverage)",
        "CREATE TABLE global_stats (stat_name, stat_value)",
        "INSERT INTO global_stats VALUES ('min_step', 0)",
        "INSERT INTO monitoring_metrics VALUES (1, 'actv')",
        "CREATE TABLE metric_1_step_0_49999 (step, norm)",
    )


SPOILT = {
    garbage: "not a database",
    empty: "expected the tables that probe writes",
    cut: "malformed",
    foreign: "there is no global_stats",
    newer: "expected schema 1, there is 9",
    folder: "this is no file",
    without_a_column: "expected a column rank in metric_1_step_0_49999",
}


@pytest.mark.parametrize("spoil", list(SPOILT), ids=lambda spoil: spoil.__name__)
def test_what_is_no_database_of_ours_is_named(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    """File and reason; the other ranks are read."""
    directory = write(tmp_path, "sqlite", range(40))
    write(tmp_path, "sqlite", range(3), "Dec03_21-34-40-rank1-00000001", rank=1)
    spoil(directory / "monitor_metrics.db")
    found, wrong = read(tmp_path, 1)
    assert len(found) == 3
    assert any("rank0-00000000" in line and SPOILT[spoil] in line and "left out" in line for line in wrong), wrong


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE metric_1_step_0_49999 SET max = 'wide' WHERE step = 1 AND target_id = 2",
        "UPDATE metric_1_step_0_49999 SET max = x'00ff' WHERE step = 1 AND target_id = 2",
        "UPDATE metric_1_step_0_49999 SET target_id = 99 WHERE step = 1 AND target_id = 2",
        "UPDATE metric_1_step_0_49999 SET form_id = 99 WHERE step = 1 AND target_id = 2",
        "UPDATE metric_1_step_0_49999 SET step = 1.5 WHERE step = 1 AND target_id = 2",
    ],
)
def test_a_row_that_cannot_be_read_is_left_out_alone(tmp_path: Path, change: str) -> None:
    """A value that is no number, a name or a shape that is not there: the rows beside it are read."""
    execute(write(tmp_path, "sqlite", range(3)), change)
    found, wrong = read(tmp_path)
    assert [len(b) for step in found for b in step.batches if b.signal == "actv"] == [4, 3, 4]
    assert len(wrong) == 1
    assert "monitor_metrics.db: metric_1_step_0_49999: 1 row with cells that cannot be read: left out" in wrong[0]


def test_a_damaged_page_costs_its_table_from_there_on(tmp_path: Path) -> None:
    """Steps before it and the other signals are read, and the first step that is missing is named."""
    directory = write(tmp_path, "sqlite", range(200))
    path = directory / "monitor_metrics.db"
    with closing(sqlite3.connect(path)) as database:
        size = database.execute("PRAGMA page_size").fetchone()[0]
        root = "SELECT rootpage FROM sqlite_master WHERE name = 'metric_1_step_0_49999'"
        page = database.execute(root).fetchone()[0]
    data = bytearray(path.read_bytes())
    header = (page - 1) * size
    assert data[header] == 2, "the table is too small: its root is no inner page"
    cells = int.from_bytes(data[header + 3 : header + 5], "big")
    pointer = header + 12 + 2 * (cells // 2)
    cell = header + int.from_bytes(data[pointer : pointer + 2], "big")
    child = int.from_bytes(data[cell : cell + 4], "big")
    data[(child - 1) * size : child * size] = b"\xff" * size
    path.write_bytes(data)
    found, wrong = read(tmp_path)
    kept = [step.step for step in found if any(b.signal == "actv" for b in step.batches)]
    assert 0 < len(kept) < 200
    assert kept == list(range(len(kept)))
    assert len([step for step in found if any(b.signal == "actv_grad" for b in step.batches)]) == 200
    assert any(f"metric_1_step_0_49999: its rows from step {len(kept)} on cannot be read" in line for line in wrong), (
        wrong
    )


def test_a_hostile_database_is_read_as_data(tmp_path: Path) -> None:
    """Names are no SQL, views and virtual tables are not asked, text that is no UTF-8 is escaped."""
    directory = write(tmp_path, "sqlite", range(2))
    execute(
        directory,
        "ALTER TABLE metric_1_step_0_49999 ADD COLUMN \"x') TO '/dev/full\" REAL",
        "ALTER TABLE metric_1_step_0_49999 ADD COLUMN directory REAL",
        "UPDATE monitoring_targets SET target_name = CAST(x'ff62' AS TEXT) WHERE target_id = 1",
        "INSERT INTO monitoring_metrics VALUES (9, 'endless')",
        "CREATE VIEW metric_9_step_0_49999 AS WITH RECURSIVE n(rank, step, target_id, form_id) AS "
        "(SELECT 0, 0, 1, 1 UNION ALL SELECT 0, step + 1, 1, 1 FROM n) SELECT * FROM n",
    )
    found, wrong = read(tmp_path)
    assert [b.signal for b in found[0].batches] == ["actv", "actv_grad", "grad_reduced"]
    assert found[0].batches[0].keys[0] == Key("\\xffb")
    assert len(wrong) == 1
    assert "expected ops as columns; 'directory' left out" in wrong[0]
