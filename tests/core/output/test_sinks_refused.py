"""Files that the system refuses to make longer, and names that no encoding holds."""

from __future__ import annotations

import csv
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from probe.core.output.sinks import SINKS
from probe.core.records import Key
from tests.core.output.sink_data import batch, context, finding, snapshot
from tests.full_disk import files_of_at_most
from tests.required import require

SURROGATE, ESCAPED = "torn\udc80name", "torn\\udc80name"


def opened(name: str, root: Path, **fields: Any) -> Any:
    require({"tensorboard": "tensorboardX", "parquet": "duckdb"}.get(name, "numpy"))
    sink = SINKS[name](context(root, **fields))
    sink.open()
    return sink


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, strict=True))


def step(number: int) -> Any:
    rows = batch("actv", number, {"min": [1.0] * 40, "max": [2.0] * 40})
    return snapshot(number, rows, findings=(finding(number),), cost={"hooks": 0.5})


@pytest.mark.parametrize("name", ["csv", "tensorboard", "cost", "anomaly", "parquet"])
def test_a_file_that_cannot_be_begun_is_not_left_empty(tmp_path: Path, name: str) -> None:
    """Readers refuse a table without a header. When there is room again, the next step is there."""
    sink = opened(name, tmp_path, dump=True)
    with files_of_at_most(16), pytest.raises(Exception, match=str(tmp_path)):
        sink.write(step(0))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    sink.write(step(1))
    sink.close()
    assert [path for path in tmp_path.rglob("*") if path.is_file() and not path.stat().st_size] == []
    assert any(path.is_file() for path in tmp_path.rglob("*"))


def test_a_csv_file_that_cannot_grow_stays_readable(tmp_path: Path) -> None:
    """The step that does not fit is lost as a whole, and named; those before and after it are there."""
    sink = opened("csv", tmp_path, steps_per_file=10)
    sink.write(step(0))
    (path,) = (tmp_path / "run").iterdir()
    with files_of_at_most(path.stat().st_size + 100), pytest.raises(OSError, match=r"actv_0-9\.csv"):
        sink.write(step(1))
    sink.write(step(2))
    assert [row["step"] for row in rows_of(path)] == ["0"] * 40 + ["2"] * 40


def test_a_database_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """The message has the path, and a way out."""
    sink = SINKS["sqlite"](context(tmp_path))
    with files_of_at_most(4096), pytest.raises(OSError, match=r"run/monitor_metrics.db.*MONITOR_OUTPUT_DIR"):
        sink.open()


def test_a_database_that_cannot_grow_is_named(tmp_path: Path) -> None:
    """The message has the path and the step that is lost; the next step is written when there is room again."""
    sink = opened("sqlite", tmp_path)
    with files_of_at_most(16 << 10), pytest.raises(OSError, match=r"monitor_metrics.db: .*step 0 is lost"):
        sink.write(step(0))
    sink.write(step(9))
    sink.close()
    with closing(sqlite3.connect(tmp_path / "run" / "monitor_metrics.db")) as database:
        assert (9,) in database.execute("SELECT DISTINCT step FROM actv_rows").fetchall()


def names_in_csv(path: Path) -> set[str]:
    return {row["name"] for row in rows_of(path / "actv_0-0.csv")} | {file.name for file in path.iterdir()}


def names_in_parquet(path: Path) -> set[str]:
    duckdb = require("duckdb")
    rows = duckdb.execute("SELECT name FROM read_parquet(?)", [str(path / "actv_0-0.parquet")]).fetchall()
    return {name for (name,) in rows} | {file.name for file in path.iterdir()}


def names_in_sqlite(path: Path) -> set[str]:
    with closing(sqlite3.connect(path / "monitor_metrics.db")) as database:
        targets = database.execute("SELECT target_name FROM monitoring_targets UNION SELECT metric_name "
                                   "FROM monitoring_metrics").fetchall()  # fmt: skip
    return {name for (name,) in targets}


def names_in_tensorboard(path: Path) -> set[str]:
    events = require("tensorboard.backend.event_processing.event_accumulator").EventAccumulator(str(path))
    events.Reload()
    return set(events.Tags()["scalars"])


FOUND = {
    "csv": (names_in_csv, {ESCAPED, "whole", "state%5Cudc80_0-0.csv"}),
    "parquet": (names_in_parquet, {ESCAPED, "whole", "state%5Cudc80_0-0.parquet"}),
    "sqlite": (names_in_sqlite, {ESCAPED, "whole", "state\\udc80"}),
    "tensorboard": (
        names_in_tensorboard,
        {f"0:{ESCAPED}/rank0/actv_min", "0:whole/rank0/actv_min", "0:p0/rank0/state\\udc80_min"},
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_a_name_with_half_a_character_costs_no_row(tmp_path: Path, name: str) -> None:
    """A lone surrogate, as file names that are no text leave in strings, is escaped in every format alike."""
    sink = opened(name, tmp_path)
    keys = (Key(SURROGATE), Key("whole"))
    state = batch("state\udc80", 0, {"min": [3.0]})
    sink.write(snapshot(0, batch("actv", 0, {"min": [1.0, 2.0]}, keys=keys), state, ops=("min",)))
    sink.close()
    found, expected = FOUND[name]
    assert expected <= found(tmp_path / "run")
