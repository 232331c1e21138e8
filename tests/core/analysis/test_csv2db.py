"""Conversion to SQLite, asked through sqlite3 alone and compared with what Python's csv module reads."""

from __future__ import annotations

import csv
import math
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from probe.cli import app
from probe.core.analysis.convert.csv2tb import csv2tensorboard_by_step
from probe.core.analysis.engines.workers import AHEAD, WorkersDiedError, in_order
from probe.core.csv2db import CSV2DBConfig, csv2db
from probe.core.storage.problems import Problems
from probe.core.storage.table_files import tables
from tests.core.storage.run_files import Place, cells_of, write_run

pytestmark = pytest.mark.slow

KINDS = ["actv", "grad_reduced"]


def convert(root: Path, output: Path, **fields: Any) -> Any:
    return csv2db(CSV2DBConfig(root, output_dirpath=output, **fields))


def ask(output: Path, query: str, *values: object) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"file:{output / 'monitor_metrics.db'}?mode=ro", uri=True)) as database:
        return database.execute(query, values).fetchall()


def held(output: Path, kinds: list[str] = KINDS) -> dict[tuple[Place, int], float]:
    """Every number in the database, through its views."""
    found = {}
    for kind in kinds:
        query = f"SELECT rank, step, vpp_stage, target_name, micro_step, min, max FROM {kind}_rows"
        for rank, step, stage, name, micro, *numbers in ask(output, query):
            for op, number in zip(("min", "max"), numbers, strict=True):
                found[(rank, kind, stage, name, micro, op), step] = number
    return found


def written(*directories: tuple[Path, int]) -> dict[tuple[Place, int], float]:
    """The numbers in the files; of a number that comes twice, the later."""
    return {(place, step): value for path, rank in directories for place, step, value in cells_of(path, rank)}


def test_every_number_of_every_rank_is_there(tmp_path: Path) -> None:
    """Ranks, kinds, micro steps, and steps of several tables."""
    runs = [(write_run(tmp_path, rank, range(12), steps_per_file=5), rank) for rank in (0, 3)]
    done = convert(tmp_path, tmp_path / "db", step_partition=4)
    assert (done.rows, done.files, done.problems.lines()) == (2 * 12 * 6, 2 * 2 * 3, [])
    assert held(tmp_path / "db") == written(*runs)
    tables = ask(
        tmp_path / "db",
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'metric\\_%\\_step\\_%' ESCAPE '\\'",
    )
    assert sorted(tables) == [(f"metric_{n}_step_{a}_{a + 3}",) for n in (1, 2) for a in (0, 4, 8)]


def test_of_a_row_that_comes_twice_the_later_counts(tmp_path: Path) -> None:
    """It is told, and counted once."""
    directory = write_run(tmp_path, 0, range(3))
    path = directory / "actv_1-1.csv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, lines[1].replace(lines[1].split(",")[4], "7.5"), ""]))
    done = convert(tmp_path, tmp_path / "db")
    assert done.problems.lines() == [f"{path}: actv: step 1 has 1 row twice: the later one is taken"]
    assert done.rows == 3 * 6
    assert held(tmp_path / "db") == written((directory, 0))


def test_processes_change_nothing(tmp_path: Path) -> None:
    """The database has the same rows, whoever has read the files."""
    for rank in range(3):
        write_run(tmp_path, rank, range(6))
    convert(tmp_path, tmp_path / "one")
    convert(tmp_path, tmp_path / "three", process_num=3)
    assert held(tmp_path / "three") == held(tmp_path / "one")
    assert len(held(tmp_path / "one")) == 3 * 6 * 12


@pytest.mark.parametrize("command", ["csv2db", "csv2tb"])
def test_a_rank_whose_rows_are_in_a_database_is_named(tmp_path: Path, command: str) -> None:
    """The others are converted, and the exit code is 1; of databases alone it is 2."""
    write_run(tmp_path, 0, range(3), sink="sqlite")
    alone = CliRunner().invoke(app, [command, str(tmp_path), "-o", str(tmp_path / "out")])
    write_run(tmp_path, 1, range(3))
    beside = CliRunner().invoke(app, [command, str(tmp_path), "-o", str(tmp_path / "out")])
    assert (alone.exit_code, beside.exit_code) == (2, 1)
    for done in (alone, beside):
        assert "rank0-00000000: expected CSV or Parquet files; the rows of this rank are in a database" in done.output


def test_a_script_without_a_main_guard_may_ask_for_processes(tmp_path: Path) -> None:
    """The documented script calls csv2db at its top level."""
    write_run(tmp_path, 0, range(4))
    script = tmp_path / "csv2db.py"
    script.write_text(f"""
print("begun")
from probe.core.analysis.engines.workers import AHEAD, WorkersDiedError, in_order
from probe.core.analysis.convert.csv2tb import csv2tensorboard_by_step
from probe.core.csv2db import CSV2DBConfig, csv2db
from probe.core.storage.table_files import tables
from probe.core.storage.problems import Problems
config = CSV2DBConfig(monitor_path={str(tmp_path)!r}, process_num=2, output_dirpath={str(tmp_path / "db")!r})
csv2db(config)
""")
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert ran.stdout.count("begun") == 1
    assert len(held(tmp_path / "db")) == 4 * 12


def test_numbers_that_are_not_finite_survive(tmp_path: Path) -> None:
    """NaN is the text nan, infinities are infinities, a large number is not cut off, a missing one is NULL."""
    directory = tmp_path / "Dec03_21-34-40-rank0-0"
    directory.mkdir()
    lines = [f"0,p{n},0,{cell}" for n, cell in enumerate(["nan", "inf", "-inf", "1e300", "-1e10", "", "NaN"])]
    (directory / "param_origin_0-0.csv").write_text("\n".join(["vpp_stage,name,step,norm", *lines]) + "\n")
    assert convert(tmp_path, tmp_path / "db").problems.lines() == []
    values = [value for (value,) in ask(tmp_path / "db", "SELECT norm FROM param_origin_rows ORDER BY target_name")]
    assert values == ["nan", math.inf, -math.inf, 1e300, -1e10, None, "nan"]
    above = ask(tmp_path / "db", "SELECT target_name FROM param_origin_rows WHERE norm > 1e200 ORDER BY 1")
    assert [name for (name,) in above] == ["p0", "p1", "p3", "p6"]  # queries for large numbers find NaN too


@pytest.mark.parametrize(
    ("where", "index"),
    [
        ("step = 7", "PRIMARY KEY (step=?)"),
        ("step = 7 AND rank = 2", "PRIMARY KEY (step=? AND rank=?)"),
        ("target_name = 'fc.input' AND rank = 2", "_target (target_id=? AND rank=?)"),
        ("target_name = 'fc.input'", "_target (target_id=?)"),
    ],
)
def test_both_questions_are_answered_by_an_index(tmp_path: Path, where: str, index: str) -> None:
    """All layers at a step, a layer over steps: no table is read from end to end."""
    write_run(tmp_path, 0, range(8))
    convert(tmp_path, tmp_path / "db", step_partition=4)
    plan = [row[3] for row in ask(tmp_path / "db", f"EXPLAIN QUERY PLAN SELECT * FROM actv_rows WHERE {where}")]
    assert sum(index in line for line in plan) == 2  # one for each table of four steps
    assert not any(line.startswith("SCAN") for line in plan)


def test_a_resumed_run_is_read_whole_and_its_later_rows_are_kept(tmp_path: Path) -> None:
    """Steps 3 and 4 were done again: the later directory has them, whatever its name sorts like."""
    first = write_run(tmp_path, 0, range(5), time="Nov30_08-00-00")
    second = write_run(tmp_path, 0, range(3, 7), time="Dec01_08-00-00", scale=10)
    convert(tmp_path, tmp_path / "db")
    assert held(tmp_path / "db") == written((first, 0), (second, 0))
    assert written((first, 0), (second, 0)) != written((second, 0), (first, 0))


@pytest.mark.parametrize(
    ("start", "end", "ranks"),
    [
        ("Dec03_21-34-41", None, {1, 2}),
        (None, "Dec03_21-34-41", {0, 1}),
        ("Dec03_21-34-41", "Dec03_21-34-41", {1}),
        (None, None, {0, 1, 2}),
    ],
)
def test_both_ends_of_the_time_are_included(tmp_path: Path, start: str, end: str, ranks: set[int]) -> None:
    """Directories of exactly these times belong to what is converted."""
    for rank in range(3):
        write_run(tmp_path, rank, [0], time=f"Dec03_21-34-4{rank}")
    convert(tmp_path, tmp_path / "db", time_start=start, time_end=end)
    assert {rank for (rank,) in ask(tmp_path / "db", "SELECT DISTINCT rank FROM actv_rows")} == ranks


def test_only_the_kinds_asked_for(tmp_path: Path) -> None:
    """A documented kind without files is logged; an unknown one is an error that lists those that exist."""
    write_run(tmp_path, 0, [0])
    done = convert(tmp_path, tmp_path / "db", data_type_list=["actv", "other"])
    assert ask(tmp_path / "db", "SELECT metric_name FROM monitoring_metrics") == [("actv",)]
    assert "no files of other" in done.problems.lines()[0]
    assert not done.problems.skipped
    with pytest.raises(ValueError, match="there is no grads; there are actv, grad_reduced"):
        convert(tmp_path, tmp_path / "db", data_type_list=["grads"])


def test_other_and_kinds_without_a_name_of_their_own(tmp_path: Path) -> None:
    """Collectives, optimizer state under any name, features: whatever has the form of a table."""
    directory = tmp_path / "Dec03_21-34-40-rank0-0"
    directory.mkdir()
    for kind in ("other", "momentum_buffer", "attention_hook", "a b%2Fc"):
        (directory / f"{kind}_0-0.csv").write_text(f"vpp_stage,name,step,entropy\n0,{kind[0]},0,1.5\n")
    convert(tmp_path, tmp_path / "db")
    rows = [
        ask(tmp_path / "db", f'SELECT target_name, entropy FROM "{k}_rows"')
        for k in ("other", "a b/c", "momentum_buffer")
    ]
    assert rows == [[("o", 1.5)], [("a", 1.5)], [("m", 1.5)]]
    stats = ask(
        tmp_path / "db", "SELECT metric_name, stat_name FROM metric_stats JOIN monitoring_metrics USING (metric_id)"
    )
    assert ("attention_hook", "entropy") in stats


def test_columns_that_change_during_a_run(tmp_path: Path) -> None:
    """An op that comes later is NULL before."""
    directory = tmp_path / "Dec03_21-34-40-rank0-0"
    directory.mkdir()
    (directory / "actv_0-9.csv").write_text("vpp_stage,name,step,min\n0,a,0,1\n")
    (directory / "actv_5-9.csv").write_text("vpp_stage,name,step,max,min\n0,a,5,3,2\n")
    convert(tmp_path, tmp_path / "db")
    assert ask(tmp_path / "db", "SELECT step, min, max FROM actv_rows ORDER BY step") == [(0, 1, None), (5, 2, 3)]


def test_rows_without_numbers_before_rows_with_some(tmp_path: Path) -> None:
    """A run that begins with histograms alone, whose text is left out, and goes on with an op."""
    directory = tmp_path / "Dec03_21-34-40-rank0-0"
    directory.mkdir()
    (directory / "actv_0-0.csv").write_text("vpp_stage,name,step,shape,dtype,histogram\n0,a,0,[1],Float32,0:1\n")
    (directory / "actv_1-1.csv").write_text("vpp_stage,name,step,min,shape,dtype\n0,a,1,2,[1],Float32\n")
    done = convert(tmp_path, tmp_path / "db")
    assert list(done.problems.lines()) == []
    assert ask(tmp_path / "db", "SELECT step, min FROM actv_rows ORDER BY step") == [(0, None), (1, 2)]


def test_what_a_tensor_is_like_is_there(tmp_path: Path) -> None:
    """Shape and dtype of every row, as the files have them."""
    write_run(tmp_path, 0, [0])
    convert(tmp_path, tmp_path / "db")
    assert set(ask(tmp_path / "db", "SELECT shape, dtype FROM actv_rows")) == {("[3, 2]", "torch.float32")}


def bad_files(directory: Path) -> None:
    head = "vpp_stage,name,step,norm\n"
    (directory / "actv_0-0.csv").write_text(head + "0,a,0,1\n0,a,x,1\n0,b,0,2,3\n0,c,0,word\n0,d,0,4\n")
    (directory / "actv_1-1.csv").write_text(head + "0,a,1,1\n0,b,1,2\n0,c,1,3")
    (directory / "actv_2-2.csv").write_text("")
    (directory / "actv_3-3.csv").write_text("id,who\n1,me\n")
    (directory / "actv_4-4.csv").write_bytes(head.encode() + b"0,a,4,1\n" + bytes(range(256)) + b"\n0,b,4,2\n")
    (directory / "actv_5-5.csv").write_text(head + '0,"a,5,1\n0,b,5,2\n')
    (directory / "grad_reduced_0-0.csv").write_text(head + "0,w,0,7\n")
    (directory / "actv_6-6.parquet").write_bytes(b"PAR1 is not all PAR1")


def test_bad_files_are_told_by_line_and_the_rest_is_converted(tmp_path: Path) -> None:
    """Half-written, empty, foreign and garbled files; exit code 1."""
    pytest.importorskip("duckdb")
    directory = tmp_path / "Dec03_21-34-40-rank0-0"
    directory.mkdir()
    bad_files(directory)
    ran = CliRunner().invoke(app, ["csv2db", str(tmp_path), "-o", str(tmp_path / "db")])
    assert ran.exit_code == 1
    for said in (
        "actv_0-0.csv:3: expected a number in column step, got 'x'",
        "actv_0-0.csv:4: expected 4 cells, got 5",
        "actv_0-0.csv:5: expected a number in column norm, got 'word'",
        "actv_1-1.csv:4: the last line is not finished",
        "actv_2-2.csv: expected a table; the file is empty",
        "actv_3-3.csv:1: expected a header",
        "unexpected end of data: this line and the next are left out",
        "actv_6-6.parquet: expected a Parquet file",
    ):
        assert said in ran.stdout.replace("\n", "")
    rows = ask(
        tmp_path / "db", "SELECT step, target_name, norm FROM actv_rows WHERE length(target_name) = 1 ORDER BY 1, 2"
    )
    assert rows == [(0, "a", 1), (0, "d", 4), (1, "a", 1), (1, "b", 2), (4, "a", 1), (4, "b", 2)]
    assert ask(tmp_path / "db", "SELECT norm FROM grad_reduced_rows") == [(7,)]
    assert ask(tmp_path / "db", "SELECT bad_rows FROM imported_files WHERE file LIKE '%actv_0-0.csv'") == [(3,)]


@pytest.mark.parametrize("step", ["-1", "9" * 20, str(2**32)])
def test_a_step_that_is_none_takes_its_line_alone(tmp_path: Path, step: str) -> None:
    """A step that is negative or too large is reported by its line; as curves, too."""
    directory = tmp_path / "Dec03_21-34-40-rank0-0"
    directory.mkdir()
    (directory / "actv_0-0.csv").write_text(f"vpp_stage,name,step,norm\n0,a,0,1\n0,a,{step},1\n0,a,2,4\n")
    done = convert(tmp_path, tmp_path / "db")
    curves = csv2tensorboard_by_step(tmp_path, output_dirpath=tmp_path / "tb")
    for problems in (done.problems, curves.problems):
        (said,) = problems.lines()
        assert "actv_0-0.csv:3: expected a number in column step" in said
    assert ask(tmp_path / "db", "SELECT step, norm FROM actv_rows ORDER BY 1") == [(0, 1), (2, 4)]
    assert curves.rows == 2


def test_what_a_file_left_behind_is_undone_with_it(tmp_path: Path) -> None:
    """One that has a column which cannot be stored takes nothing of the next file with it."""
    directory = tmp_path / "Dec03_21-34-40-rank0-0"
    directory.mkdir()
    (directory / "actv_0-0.csv").write_text("vpp_stage,name,step,target_id\n0,a,0,1\n")
    (directory / "actv_1-1.csv").write_text("vpp_stage,name,step,min\n0,a,1,2\n")
    done = convert(tmp_path, tmp_path / "db")
    assert "actv_0-0.csv: expected ops, got columns called target_id: left out" in done.problems.lines()[0]
    assert ask(tmp_path / "db", "SELECT step, target_name, min FROM actv_rows") == [(1, "a", 2)]


def test_large_files_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No row is lost or doubled where a piece ends, wherever that is; bad lines keep their numbers."""
    from probe.core.storage import chunks, csv_reader

    directory = write_run(tmp_path, 0, range(7), steps_per_file=100)
    file = tables(directory, Problems())[0]
    text = file.path.read_text()
    expected = [(int(row["step"]), row["name"], float(row["min"])) for row in csv.DictReader(text.splitlines())]
    for size in range(1, 200):
        monkeypatch.setattr(csv_reader, "PIECE_BYTES", size)
        found = []
        for piece in chunks.pieces(file, 0):
            if rows := chunks.parse(piece).rows:
                names = [rows.targets[target].name for target in rows.target]
                found += zip(rows.steps.tolist(), names, rows.values["min"].tolist(), strict=True)
        assert found == expected
    monkeypatch.setattr(csv_reader, "PIECE_BYTES", 97)
    assert convert(tmp_path, tmp_path / "db").rows == 7 * 6
    assert held(tmp_path / "db") == written((directory, 0))
    lines = (directory / "actv_0-99.csv").read_text().splitlines()
    lines[20] = "0,broken"
    (directory / "actv_0-99.csv").write_text("\n".join(lines) + "\n")
    assert (
        convert(tmp_path, tmp_path / "bad")
        .problems.lines()[0]
        .endswith("actv_0-99.csv:21: expected 8 cells, got 2: this line is left out")
    )


def test_going_on_needs_no_step_partition(tmp_path: Path) -> None:
    """Left out it is what the database was made with; 500 in a new one."""
    write_run(tmp_path, 0, range(3))
    convert(tmp_path, tmp_path / "db", step_partition=2)
    write_run(tmp_path, 0, range(3, 6), time="Dec04_00-00-00")
    convert(tmp_path, tmp_path / "db")
    convert(tmp_path, tmp_path / "new")
    query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'metric_1_step_%' ORDER BY name"
    assert ask(tmp_path / "db", query) == [(f"metric_1_step_{span}",) for span in ("0_1", "2_3", "4_5")]
    assert ask(tmp_path / "new", query) == [("metric_1_step_0_499",)]
    assert held(tmp_path / "db") == held(tmp_path / "new")


def test_going_on_reads_only_what_is_new(tmp_path: Path) -> None:
    """Files of a finished conversion are not read again; a changed one is, and a new one."""
    directory = write_run(tmp_path, 0, range(3))
    assert convert(tmp_path, tmp_path / "db").files == 6
    assert (convert(tmp_path, tmp_path / "db").files, convert(tmp_path, tmp_path / "db").known) == (0, 6)
    with (directory / "actv_2-2.csv").open("a") as file:
        file.write('0,late,2,0,1,2,"[1]",torch.float32\n')
    write_run(tmp_path, 0, range(2, 5), time="Dec04_00-00-00")
    convert(tmp_path, tmp_path / "db")
    convert(tmp_path, tmp_path / "afresh")
    assert held(tmp_path / "db") == held(tmp_path / "afresh")
    assert len(held(tmp_path / "db")) == 5 * 12 + 2


def test_rows_of_an_earlier_directory_never_replace_later_ones(tmp_path: Path) -> None:
    """Also where the earlier one changes, or comes to light, when the later one is in the database already."""
    late = write_run(tmp_path, 0, range(3), time="Dec04_00-00-00", scale=10)
    convert(tmp_path, tmp_path / "db")
    early = write_run(tmp_path, 0, range(4), time="Dec03_00-00-00")
    convert(tmp_path, tmp_path / "db")
    assert held(tmp_path / "db") == written((early, 0), (late, 0))
    (early / "actv_3-3.csv").write_text((early / "actv_3-3.csv").read_text().replace("fc", "gc"))
    convert(tmp_path, tmp_path / "db")
    assert held(tmp_path / "db") == written((early, 0), (late, 0))


KILLED = """
import sys
from probe.core.analysis.convert.csv2db import CSV2DBConfig, convert
config = CSV2DBConfig(sys.argv[1], process_num=int(sys.argv[3]), output_dirpath=sys.argv[2])
def told(done, total, what):
    print(done, flush=True)
    if done == 5:
        sys.stdin.read()
convert(config, told)
"""


@pytest.mark.parametrize("processes", [1, 2])
def test_a_killed_conversion_is_gone_on_with(tmp_path: Path, processes: int) -> None:
    """SIGKILL in the middle, then once more: the same rows as of one conversion; what was done is not done again."""
    root = tmp_path / "run"
    for rank in (0, 1):
        write_run(root, rank, range(6))
    command = [sys.executable, "-c", KILLED, str(root), str(tmp_path / "db"), str(processes)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert [int(process.stdout.readline()) for _ in range(5)] == [1, 2, 3, 4, 5]
    process.kill()
    process.wait()
    files = ask_after_a_crash(tmp_path / "db")
    assert files == 5
    assert convert(root, tmp_path / "db").known == 5
    convert(root, tmp_path / "whole")
    assert held(tmp_path / "db") == held(tmp_path / "whole")
    assert len(held(tmp_path / "db")) == 2 * 6 * 12


def ask_after_a_crash(output: Path) -> int:
    with closing(sqlite3.connect(output / "monitor_metrics.db")) as database:
        return int(database.execute("SELECT count(*) FROM imported_files").fetchone()[0])


def test_two_conversions_into_one_database_keep_both(tmp_path: Path) -> None:
    """What is not chosen this time stays."""
    runs = [(write_run(tmp_path, 0, range(3 * n, 3 * n + 3), time=f"Dec0{n + 1}_00-00-00"), 0) for n in range(3)]
    convert(tmp_path, tmp_path / "db", time_end="Dec02_00-00-00")
    convert(tmp_path, tmp_path / "db", time_start="Dec02_00-00-00")
    assert held(tmp_path / "db") == written(*runs)
    changed = runs[1][0] / "actv_4-4.csv"
    changed.write_text(changed.read_text() + '0,late,4,0,1,2,"[1]",torch.float32\n')
    convert(tmp_path, tmp_path / "db", time_start="Dec02_00-00-00")
    assert held(tmp_path / "db") == written(*runs)


def test_the_default_folder_and_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``~`` is expanded, and without an output the folder's name has the kind and the time."""
    monkeypatch.setenv("HOME", str(tmp_path))
    write_run(tmp_path / "out", 0, [0])
    done = csv2db(CSV2DBConfig("~/out"))
    assert done.path.parent.parent == tmp_path / "out"
    assert done.path.parent.name.endswith("_csv2db")
    assert done.path.name == "monitor_metrics.db"
    csv2db(CSV2DBConfig("~/out"))  # its own output is no run


@pytest.mark.parametrize(
    ("key", "value"),
    [("monitor_path", ""), ("monitor_path", None), ("monitor_path", 5), ("output_dirpath", ""), ("output_dirpath", 7)],
)
def test_what_is_no_path_is_told_with_its_parameter(tmp_path: Path, key: str, value: Any) -> None:
    """An empty one is not the current directory."""
    write_run(tmp_path, 0, [0])
    told = f"{key}: expected the path of a folder, got {value!r}"
    with pytest.raises(ValueError, match=told):
        CSV2DBConfig(**{"monitor_path": tmp_path, key: value})
    with pytest.raises(ValueError, match=told):
        csv2tensorboard_by_step(**{"monitor_path": tmp_path, key: value})


def wrong_uses(root: Path) -> Iterator[tuple[list[str], str]]:
    yield ["csv2db", str(root / "nowhere")], "there is none of this name"
    yield ["csv2db", str(root / "empty")], "found none"
    yield ["csv2db", str(root / "run"), "--time-start", "yesterday"], "time_start: expected a time such as"
    yield (
        ["csv2db", str(root / "run"), "--time-start", "Jan01_00-00-00", "--time-end", "Jan02_00-00-00"],
        "no directory from",
    )
    yield ["csv2db", str(root / "run"), "-j", "0"], "process_num: expected a whole number from 1"
    yield ["csv2db", str(root / "run"), "--step-partition", "0"], "step_partition: expected a whole number"
    diary = str(root / "taken" / "monitor_metrics.db")
    yield ["csv2db", str(root / "run"), "-o", diary], "expected a folder to write to; this is a file"
    yield ["csv2db", str(root / "run"), "-o", str(root / "taken")], "expected a metrics database or no file"
    yield ["csv2db", str(root / "run"), "-o", str(root / "foreign")], "expected a database that probe has written"
    yield ["csv2db", str(root / "run"), "-o", str(root / "db"), "--step-partition", "7"], "made with 500"


def test_wrong_use_is_told_and_leaves_all_as_it_was(tmp_path: Path) -> None:
    """Exit code 2, and what was expected; nothing of anyone's is written to."""
    (tmp_path / "empty").mkdir()
    write_run(tmp_path / "run", 0, [0])
    convert(tmp_path / "run", tmp_path / "db")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "monitor_metrics.db").write_text("a diary, " * 1000)
    (tmp_path / "foreign").mkdir()
    with closing(sqlite3.connect(tmp_path / "foreign" / "monitor_metrics.db")) as database:
        database.execute("CREATE TABLE diary (day)")
    foreign = (tmp_path / "foreign" / "monitor_metrics.db").read_bytes()
    for arguments, said in wrong_uses(tmp_path):
        ran = CliRunner().invoke(app, arguments)
        assert (ran.exit_code, said in ran.output) == (2, True), (arguments, ran.output)
    assert (tmp_path / "taken" / "monitor_metrics.db").read_text() == "a diary, " * 1000
    assert (tmp_path / "foreign" / "monitor_metrics.db").read_bytes() == foreign


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """Exit code 1, and the folder."""
    write_run(tmp_path / "run", 0, [0])
    (tmp_path / "closed").mkdir(mode=0o500)
    ran = CliRunner().invoke(app, ["csv2db", str(tmp_path / "run"), "-o", str(tmp_path / "closed")])
    assert (ran.exit_code, "closed" in ran.output) == (1, True)


def _die_at_two(number: int) -> int:
    if number == 2:
        os.kill(os.getpid(), 9)
    return number


def _refuse_two(number: int) -> int:
    if number == 2:
        raise KeyError("two")
    return number * 10


@pytest.mark.parametrize("processes", [1, 3])
def test_every_result_and_failure_comes_in_its_turn(processes: int) -> None:
    """Whichever process has done it."""
    results = list(in_order(_refuse_two, range(20), processes))
    assert [item for item, _ in results] == list(range(20))
    assert [result for item, result in results if item != 2] == [n * 10 for n in range(20) if n != 2]
    assert isinstance(results[2][1], KeyError)


def test_a_killed_worker_is_no_silent_end() -> None:
    """It is an error, not a conversion of fewer files."""
    with pytest.raises(WorkersDiedError):
        list(in_order(_die_at_two, range(20), 2))


def test_few_results_wait() -> None:
    """Items are taken as they are needed: memory does not grow with their number."""
    taken = []

    def items() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    results = in_order(_refuse_two, items(), 2)
    assert next(results) == (0, 0)
    assert len(taken) <= 2 * AHEAD + 1
    results.close()  # type: ignore[attr-defined]
