"""The SQLite sink, asked through sqlite3 alone, also while it writes and after it was killed."""

from __future__ import annotations

import math
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe.core.csv2db import CSV2DBConfig, csv2db
from probe.core.output.sinks import SINKS
from probe.core.output.sinks import sqlite as sqlite_sink
from probe.core.records import Coverage, Key
from probe.core.storage.layout import coverage_text
from tests.core.output.sink_data import batch, context, snapshot
from tests.core.output.test_sinks_killed import FEW, MANY, ROWS, announced, writing
from tests.core.storage.run_files import write_run


def ask(root: Path, query: str, *values: object) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(root / "run" / "monitor_metrics.db", timeout=0)) as database:
        return database.execute(query, values).fetchall()


def opened(root: Path, **fields: Any) -> Any:
    sink = SINKS["sqlite"](context(root, **fields))
    sink.open()
    return sink


def test_every_number_comes_back_as_it_was(tmp_path: Path) -> None:
    """All digits of a double, names as in the CSV files, shapes, dtypes and what ranks share."""
    sink = opened(tmp_path / "有 空格", rank=3)
    keys = (Key("fc", "input"), Key("fc", "input", call=1), Key("fc", "output_1", 2, stage=1))
    values = np.random.default_rng(0).standard_normal((2, 3))
    coverage = (Coverage((64, 32), "0:6", (2, 3)), None, None)
    sink.write(
        snapshot(
            5,
            batch("actv", 5, {"min": values[0], "max": values[1]}, keys=keys, micro_stepped=True, coverage=coverage),
            batch("grad_reduced", 5, {"min": [1e-300], "max": [math.pi]}),
        )
    )
    sink.close()
    found = ask(tmp_path / "有 空格", "SELECT * FROM actv_rows ORDER BY vpp_stage, target_name")
    assert [row[:10] for row in found] == [
        (3, 5, 0, "fc.input", 0, values[0][0], values[1][0], "[3, 2]", "torch.float32", coverage_text(coverage[0], 6)),
        (3, 5, 0, "fc.input.call1", 0, values[0][1], values[1][1], "[3, 2]", "torch.float32", ""),
        (3, 5, 1, "fc.output_1", 2, values[0][2], values[1][2], "[3, 2]", "torch.float32", ""),
    ]
    assert ask(tmp_path / "有 空格", "SELECT min, max FROM grad_reduced_rows") == [(1e-300, math.pi)]


def test_nan_and_infinities_survive(tmp_path: Path) -> None:
    """NaN as the text nan, which SQLite would else turn into what is missing."""
    sink = opened(tmp_path)
    sink.write(snapshot(0, batch("exp_avg", 0, {"min": [math.nan, math.inf, -math.inf, 1e300]})))
    assert ask(tmp_path, "SELECT min FROM exp_avg_rows ORDER BY target_name") == [
        ("nan",), (math.inf,), (-math.inf,), (1e300,)
    ]  # fmt: skip


def test_the_layout_is_that_of_the_conversion(tmp_path: Path) -> None:
    """The database that csv2db makes of the same run's CSV files has the same tables, views, indices and rows."""
    write_run(tmp_path / "csv", 0, range(4))
    live = write_run(tmp_path / "live", 0, range(4), sink="sqlite")
    with closing(sqlite3.connect(live / "monitor_metrics.db")) as database:
        partition = dict(database.execute("SELECT * FROM global_stats"))["step_partition"]
    csv2db(CSV2DBConfig(tmp_path / "csv", output_dirpath=tmp_path / "db", step_partition=partition))
    layouts, rows = [], []
    for path in (live, tmp_path / "db"):
        with closing(sqlite3.connect(path / "monitor_metrics.db")) as database:
            layouts.append(database.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name").fetchall())
            rows.append(database.execute("SELECT * FROM actv_rows ORDER BY step, target_id").fetchall())
    assert layouts[0] == layouts[1]
    assert len(rows[0]) == 16
    for one, other in zip(*rows, strict=True):
        assert one[:5] + one[7:] == other[:5] + other[7:]
        assert one[5:7] == pytest.approx(other[5:7], rel=1e-5)  # CSV has six digits


def test_tables_are_indexed_when_they_are_full(tmp_path: Path) -> None:
    """One with each step after their range is over, all others at the end: no step writes to an index."""
    sink = opened(tmp_path)
    query, seen = "SELECT count(*) FROM sqlite_master WHERE type = 'index' AND name LIKE '%_target'", []
    for step in (0, 49_999, 50_000, 50_001, 50_002, 100_000):
        sink.write(snapshot(step, batch("actv", step, {"min": [1.0]}), batch("exp_avg", step, {"min": [1.0]})))
        seen.append(ask(tmp_path, query)[0][0])
    sink.close()
    assert seen == [0, 0, 1, 2, 2, 3]
    assert ask(tmp_path, query) == [(6,)]


@pytest.mark.parametrize(("rows", "steps"), [(4, 50_000), (5, 20_000), (200, 1_000), (201, 500), (500, 500)])
def test_a_table_has_the_steps_of_about_200_000_rows(tmp_path: Path, rows: int, steps: int) -> None:
    """The more rows a step has, the fewer steps a table has; never fewer than 500."""
    sink = opened(tmp_path)
    values = np.zeros(rows)
    sink.write(snapshot(0, batch("actv", 0, {"min": values}, keys=tuple(Key(f"m{i}", "output") for i in range(rows)))))
    sink.close()
    assert ask(tmp_path, "SELECT stat_value FROM global_stats WHERE stat_name = 'step_partition'") == [(steps,)]


def test_a_closed_database_is_one_file(tmp_path: Path) -> None:
    """It can be copied as it is, and read where nothing may be written."""
    sink = opened(tmp_path)
    sink.write(snapshot(0, batch("actv", 0, {"min": [1.0]})))
    sink.close()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["monitor_metrics.db"]
    assert ask(tmp_path, "PRAGMA journal_mode") == [("delete",)]


def test_a_reader_in_the_middle_of_a_question_holds_nothing_up(tmp_path: Path) -> None:
    """Steps are written while a transaction of a reader is open; it sees the state that it began with."""
    sink = opened(tmp_path)
    sink.write(snapshot(0, batch("actv", 0, {"min": [1.0]})))
    with closing(sqlite3.connect(tmp_path / "run" / "monitor_metrics.db", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        count = "SELECT count(*) FROM actv_rows"
        assert reader.execute(count).fetchone() == (1,)
        for step in (1, 2):
            sink.write(snapshot(step, batch("actv", step, {"min": [1.0]})))
        assert ask(tmp_path, count) == [(3,)]
        assert reader.execute(count).fetchone() == (1,)


def test_a_locked_database_costs_no_step(tmp_path: Path) -> None:
    """Rows that find it locked are written with a later step, and no exception is raised."""
    sink = opened(tmp_path)
    sink.write(snapshot(0, batch("actv", 0, {"min": [1.0]})))
    with closing(sqlite3.connect(tmp_path / "run" / "monitor_metrics.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        for step in (1, 2):
            sink.write(snapshot(step, batch("actv", step, {"min": [1.0]})))
        other.execute("ROLLBACK")
    sink.write(snapshot(3, batch("actv", 3, {"min": [1.0]})))
    sink.close()
    assert ask(tmp_path, "SELECT step FROM actv_rows ORDER BY step") == [(0,), (1,), (2,), (3,)]


def test_too_many_locked_steps_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded: the oldest are given up, each with an error that names it."""
    monkeypatch.setattr(sqlite_sink, "MOST_WAITING", 2)
    monkeypatch.setattr(sqlite_sink, "LOCKED_SECONDS", 0.001)
    sink = opened(tmp_path)
    with closing(sqlite3.connect(tmp_path / "run" / "monitor_metrics.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        for step in (0, 1):
            sink.write(snapshot(step, batch("actv", step, {"min": [1.0]})))
        with pytest.raises(OSError, match="step 0 is lost"):
            sink.write(snapshot(2, batch("actv", 2, {"min": [1.0]})))
        other.execute("ROLLBACK")
    sink.close()
    assert ask(tmp_path, "SELECT step FROM actv_rows ORDER BY step") == [(1,), (2,)]


def test_a_failed_write_leaves_what_was_there_and_the_next_goes_on(tmp_path: Path) -> None:
    """A removed directory is made again, a blocked one fails until it is free."""
    sink = opened(tmp_path)
    sink.write(snapshot(0, batch("actv", 0, {"min": [1.0]})))
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "run").touch()
    with pytest.raises(OSError):  # noqa: PT011 (which errno is the system's affair)
        sink.write(snapshot(1, batch("actv", 1, {"min": [1.0]})))
    (tmp_path / "run").unlink()
    for step in (2, 3):
        sink.write(snapshot(step, batch("actv", step, {"min": [1.0]})))
    sink.close()
    assert ask(tmp_path, "SELECT step FROM actv_rows ORDER BY step") == [(2,), (3,)]


def test_a_step_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    """A signal that cannot be stored takes its step with it, not the next one."""
    sink = opened(tmp_path)
    good = batch("actv", 0, {"min": [1.0]})
    with pytest.raises(ValueError, match="expected ops, got columns called step"):
        sink.write(snapshot(0, good, batch("odd", 0, {"step": [1.0]})))
    sink.write(snapshot(1, batch("actv", 1, {"min": [1.0]})))
    assert ask(tmp_path, "SELECT step FROM actv_rows") == [(1,)]


def test_ops_and_rows_may_change_from_step_to_step(tmp_path: Path) -> None:
    """The cache of the step before never shows in this one."""
    sink = opened(tmp_path)
    sink.write(snapshot(0, batch("actv", 0, {"min": [1.0, 2.0]})))
    sink.write(snapshot(1, batch("actv", 1, {"max": [3.0]}, keys=(Key("q"),))))
    sink.write(snapshot(700, batch("actv", 700, {"min": [4.0], "max": [5.0]})))
    assert ask(tmp_path, "SELECT step, target_name, min, max FROM actv_rows ORDER BY step, target_name") == [
        (0, "p0", 1, None), (0, "p1", 2, None), (1, "q", None, 3), (700, "p0", 4, 5)
    ]  # fmt: skip


def killed_steps(root: Path) -> list[int]:
    """Steps of which every row is there."""
    query = "SELECT step, count(*) FROM actv_rows WHERE min = step GROUP BY step ORDER BY step"
    found = ask(root, query)
    assert {number for _, number in found} == {ROWS}
    return [step for step, _ in found]


def test_a_reader_beside_the_writer_finds_every_step_written_so_far(tmp_path: Path) -> None:
    """While another process goes on writing, up to the last step it has announced."""
    with writing("sqlite", tmp_path, FEW) as process:
        for _ in range(3):
            last = announced(process, 5)
            assert killed_steps(tmp_path)[: last + 1] == list(range(last + 1))


def test_a_killed_process_leaves_every_step_it_announced(tmp_path: Path) -> None:
    """After SIGKILL in the middle of writing, and no half step after them."""
    with writing("sqlite", tmp_path, MANY) as process:
        last = announced(process, 20)
    assert killed_steps(tmp_path)[: last + 1] == list(range(last + 1))
