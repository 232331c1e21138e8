"""The Parquet sink, read back with Arrow's reader; with DuckDB's where Arrow needs a newer NumPy than is there."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe.core.output.sinks import SINKS
from probe.core.output.sinks import parquet as parquet_sink
from probe.core.records import Coverage, Key
from probe.core.storage.layout import coverage_text
from tests.core.output.sink_data import batch, context, snapshot
from tests.core.output.test_sinks_killed import MANY, announced, writing
from tests.core.storage.run_files import cells_of, write_run

duckdb = pytest.importorskip("duckdb")
try:
    import pyarrow.parquet as arrow
except ImportError:
    arrow = None


def read(path: Path) -> list[dict[str, Any]]:
    if arrow is not None:
        rows: list[dict[str, Any]] = arrow.ParquetFile(path).read().to_pylist()
        return rows
    table = duckdb.connect().execute("SELECT * FROM read_parquet(?)", [str(path)])
    columns = [column[0] for column in table.description]
    return [dict(zip(columns, row, strict=True)) for row in table.fetchall()]


def names(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "run").iterdir())


def opened(root: Path, **fields: Any) -> Any:
    sink = SINKS["parquet"](context(root, **fields))
    sink.open()
    return sink


def test_every_number_comes_back_as_it_was(tmp_path: Path) -> None:
    """All digits of a double under the columns of the CSV files, in their order."""
    sink = opened(tmp_path / "有 空'格", steps_per_file=2, rank=3)
    keys = (Key("fc", "input"), Key("fc", "input", call=1), Key("fc", "output_1", 2, stage=1))
    values = np.random.default_rng(0).standard_normal((2, 2, 3))
    coverage = (Coverage((64, 32), "0:6", (2, 3)), None, None)
    for step in (4, 5):
        columns = {"min": values[step - 4][0], "max": values[step - 4][1]}
        sink.write(snapshot(step, batch("actv", step, columns, keys=keys, micro_stepped=True, coverage=coverage)))
    rows = read(tmp_path / "有 空'格" / "run" / "actv_4-5.parquet")
    assert list(rows[0]) == [
        "vpp_stage",
        "name",
        "step",
        "micro_step",
        "min",
        "max",
        "shape",
        "dtype",
        "coverage",
        "call",
    ]
    assert [tuple(row.values()) for row in rows[3:]] == [
        (
            0,
            "fc.input",
            5,
            0,
            values[1][0][0],
            values[1][1][0],
            "[3, 2]",
            "torch.float32",
            coverage_text(coverage[0], 6),
            0,
        ),
        (0, "fc.input.call1", 5, 0, values[1][0][1], values[1][1][1], "[3, 2]", "torch.float32", "", 1),
        (1, "fc.output_1", 5, 2, values[1][0][2], values[1][1][2], "[3, 2]", "torch.float32", "", 0),
    ]
    assert [row["step"] for row in rows] == [4, 4, 4, 5, 5, 5]


def test_nan_and_infinities_survive(tmp_path: Path) -> None:
    """NaN is NaN, not what is missing."""
    sink = opened(tmp_path)
    sink.write(snapshot(0, batch("exp_avg", 0, {"min": [math.nan, math.inf, -math.inf, 1e300]})))
    values = [row["min"] for row in read(tmp_path / "run" / "exp_avg_0-0.parquet")]
    assert math.isnan(values[0])
    assert values[1:] == [math.inf, -math.inf, 1e300]


def test_a_file_is_there_when_its_steps_are_complete(tmp_path: Path) -> None:
    """Never before, and under its name only whole; what is left is written at the end."""
    sink = opened(tmp_path, steps_per_file=3)
    seen = []
    for step in (0, 1, 2, 4, 7):
        sink.write(snapshot(step, batch("actv", step, {"min": [step]})))
        seen.append(names(tmp_path))
    sink.close()
    first, second = ["actv_0-2.parquet"], ["actv_0-2.parquet", "actv_3-5.parquet"]
    assert seen == [[], [], first, first, second]
    assert names(tmp_path) == [*second, "actv_6-8.parquet"]
    assert [row["step"] for row in read(tmp_path / "run" / "actv_6-8.parquet")] == [7]


def test_a_signal_that_stops_is_written_when_its_range_is_over(tmp_path: Path) -> None:
    """Also if no other row of it ever comes."""
    sink = opened(tmp_path, steps_per_file=2)
    sink.write(snapshot(0, batch("actv", 0, {"min": [1.0]})))
    sink.write(snapshot(2, batch("exp_avg", 2, {"min": [1.0]})))
    assert names(tmp_path) == ["actv_0-1.parquet"]


def test_columns_that_change_begin_a_new_file(tmp_path: Path) -> None:
    """No step is in two files, and no file is written twice."""
    sink = opened(tmp_path, steps_per_file=10)
    for step in range(4):
        sink.write(
            snapshot(step, batch("actv", step, {"min": [1.0], "max": [2.0]}), ops=("min", "max")[: 1 + step // 2])
        )
    sink.close()
    again = opened(tmp_path, steps_per_file=10)
    again.write(snapshot(4, batch("actv", 4, {"min": [1.0]})))
    again.write(snapshot(4, batch("b/ä", 4, {"min": [1.0]})))
    again.close()
    expected = {"actv_0-9": [0, 1], "actv_2-9": [2, 3], "actv_4-9": [4], "b%2F%C3%A4_0-9": [4]}
    assert names(tmp_path) == [f"{name}.parquet" for name in expected]
    for name, steps in expected.items():
        assert [row["step"] for row in read(tmp_path / "run" / f"{name}.parquet")] == steps


def test_memory_is_bounded_whatever_the_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rows are written before their range of steps is over, and all of them once."""
    monkeypatch.setattr(parquet_sink, "MOST_ROWS", 20)
    sink = opened(tmp_path, steps_per_file=10**6)
    for step in range(9):
        sink.write(snapshot(step, batch("actv", step, {"min": [1.0] * 7})))
    sink.close()
    assert names(tmp_path) == ["actv_0-2.parquet", "actv_3-5.parquet", "actv_6-8.parquet"]
    rows = [row["step"] for name in names(tmp_path) for row in read(tmp_path / "run" / name)]
    assert rows == [step for step in range(9) for _ in range(7)]


def test_a_failed_write_is_tried_again(tmp_path: Path) -> None:
    """A directory that is blocked for a while costs nothing; one that is removed is made again."""
    sink = opened(tmp_path, steps_per_file=2)
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "run").touch()
    sink.write(snapshot(0, batch("actv", 0, {"min": [1.0]})))
    with pytest.raises(OSError):  # noqa: PT011 (which errno is the system's affair)
        sink.write(snapshot(1, batch("actv", 1, {"min": [2.0]})))
    (tmp_path / "run").unlink()
    sink.write(snapshot(2, batch("actv", 2, {"min": [3.0]})))
    sink.close()
    assert [row["min"] for name in names(tmp_path) for row in read(tmp_path / "run" / name)] == [1.0, 2.0, 3.0]


def test_what_fails_for_good_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many rows of which signal are lost; what there is room for is written later."""
    monkeypatch.setattr(parquet_sink, "MOST_ROWS", 3)
    sink = opened(tmp_path)
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "run").touch()
    with pytest.raises(OSError, match="File exists"):
        sink.write(snapshot(0, batch("actv", 0, {"min": [1.0, 1.0]})))
    with pytest.raises(OSError, match="2 rows of actv lost"):
        sink.write(snapshot(1, batch("actv", 1, {"min": [1.0]}), batch("exp_avg", 1, {"min": [1.0]})))
    with pytest.raises(OSError, match="1 row of actv, 1 row of exp_avg lost"):
        sink.close()


def test_a_killed_process_leaves_whole_files(tmp_path: Path) -> None:
    """After SIGKILL every file that has its name can be read; only the steps since the last one are lost."""
    with writing("parquet", tmp_path, MANY) as process:
        announced(process, 5)
    assert [name for name in names(tmp_path) if name.endswith(".parquet")] == []  # a million steps a file


def test_conversions_read_both_alike(tmp_path: Path) -> None:
    """A database made of Parquet files has what one of the CSV files of the same run has."""
    import sqlite3

    from probe.core.csv2db import CSV2DBConfig, csv2db

    csv_files = write_run(tmp_path / "csv", 0, range(6), steps_per_file=4)
    write_run(tmp_path / "parquet", 0, range(6), steps_per_file=4, sink="parquet")
    done = csv2db(CSV2DBConfig(tmp_path / "parquet", output_dirpath=tmp_path / "db"))
    assert (done.rows, done.problems.lines()) == (36, [])
    with sqlite3.connect(tmp_path / "db" / "monitor_metrics.db") as database:
        query = "SELECT min FROM actv_rows WHERE step = ? AND target_name = ? AND micro_step = ?"
        for (_, kind, _, name, micro, op), step, value in cells_of(csv_files, 0):
            if kind == "actv" and op == "min":
                ((found,),) = database.execute(query, (step, name, micro)).fetchall()
                assert found == pytest.approx(value, rel=1e-5)  # CSV has six digits


def test_without_duckdb_the_error_says_what_to_install(tmp_path: Path) -> None:
    """Nothing else of the sinks needs it, not even to be imported."""
    program = """
import sys
sys.modules["duckdb"] = None
from pathlib import Path
from probe.core.output.sinks import SINKS
from probe.core.output.sinks.context import SinkContext
context = SinkContext(Path("run"), Path("."), 0)
SINKS["csv"](context), SINKS["sqlite"](context)
try:
    SINKS["parquet"](context)
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert 'pip install -e ".[analysis]"' in done.stdout
