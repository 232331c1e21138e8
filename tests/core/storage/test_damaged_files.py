"""Damaged and foreign files among those of a run: every command names them, leaves them out and reads the rest."""

from __future__ import annotations

import csv
import gzip
import json
import os
import random
import shutil
import socket
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
from probe.core.storage.batches import steps
from probe.core.storage.csv_reader import PlainRows
from probe.core.storage.directories import last_run
from probe.core.storage.duckdb_reader import Rows
from probe.core.storage.problems import Problems
from probe.core.storage.run_directory import write_manifest
from tests.core.storage.run_files import write_run
from tests.required import require
from tests.view.view_process import viewing

pytestmark = pytest.mark.slow

duckdb = require("duckdb")

HEADER = b"vpp_stage,name,step,norm,shape,dtype\n"
ROW = b'0,fc.weight,0,1,"[3, 2]",torch.float32\n'
GARBAGE = random.Random(7).randbytes(3000)
FILES = {
    "a lone CR in the header": HEADER[:10] + b"\r" + HEADER[10:] + ROW,
    "a lone CR in a row": HEADER + ROW[:8] + b"\r" + ROW[8:] + ROW,
    "CR alone ends lines": (HEADER + ROW).replace(b"\n", b"\r"),
    "no text": GARBAGE,
    "no text behind a header": HEADER + ROW + GARBAGE + b"\n",
    "zeros": bytes(4096),
    "zeros behind rows": HEADER + ROW + bytes(4096),
    "UTF-16": (HEADER + ROW).decode().encode("utf-16"),
    "a long cell": HEADER + b"0," + b"x" * 3_000_000 + b',0,1,"[3]",d\n' + ROW,
    "thousands of columns": HEADER[:-1] + b"".join(b",c%d" % n for n in range(3000)) + b"\n" + ROW,
    "nothing": b"",
    "a header alone, not finished": HEADER[:-1],
    "too many cells": HEADER + ROW[:-1] + b",1,2,3\n" + ROW,
    "a quote that is not closed": HEADER + b'0,"fc.weight,0,1,[3],d\n' + ROW,
    "a compressed file": gzip.compress(HEADER + ROW),
}
"""Content of a file of a rank."""
READABLE = {
    "CR LF and LF": HEADER + ROW.replace(b"\n", b"\r\n") + ROW.replace(b",0,", b",1,"),
    "a byte order mark": b"\xef\xbb\xbf" + HEADER + ROW,
    "CR CR LF": HEADER + ROW.replace(b"\n", b"\r\r\n") + ROW.replace(b",0,", b",1,"),
    "ranks beyond number": HEADER[:-1] + b",coverage\n" + ROW[:-1] + b",1 of [3] at 0:1 over ranks 0-99999999999\n",
}
"""The same of files whose rows can be read."""
FOREIGN_TABLES = {
    "other columns": "SELECT 1 AS a",
    "text for numbers": "SELECT 0 AS vpp_stage, 'w' AS name, 'x' AS step, 1.5::DOUBLE AS norm",
    "a structure": "SELECT 0 AS vpp_stage, 'w' AS name, 0 AS step, {'a': 1} AS norm",
    "thousands of columns": "SELECT 0 AS vpp_stage, 'w' AS name, 0 AS step, "
    + ", ".join(f"1.5::DOUBLE AS c{n}" for n in range(2000)),
}
"""Parquet tables of others."""
FOREIGN_SIGNALS = [(f"foreign{n}", "norm") for n in range(len(FOREIGN_TABLES))]
GOOD_ROWS = {"actv": 4 * 4, "grad_reduced": 4 * 2}


def a_run(root: Path, ranks: int = 2) -> Path:
    """The directory of rank 0 in a healthy run."""
    paths = [write_run(root, rank, range(4)) for rank in range(ranks)]
    for rank, path in enumerate(paths):
        write_manifest(path, {"rank": rank, "world_size": ranks, "run": 0, "start_time": "2025-12-03T21:34:40+0800"})
    return paths[0]


def commands(root: Path, other: Path, out: Path) -> dict[str, list[str]]:
    """Every command that reads runs."""
    return {
        "anomalies": ["anomalies", str(root)],
        "report": ["report", str(root), "-o", str(out / "report.html")],
        "report of what the run found": ["report", str(root), "--no-judge", "-o", str(out / "found.html")],
        "compare": ["compare", str(root), str(other)],
        "merge": ["merge", str(root), "-o", str(out / "merged")],
        "csv2db": ["csv2db", str(root), "-o", str(out / "db")],
        "csv2tb": ["csv2tb", str(root), "-o", str(out / "curves")],
        "status": ["control", "status", str(root)],
    }


def ended(arguments: list[str]) -> Any:
    """The result of a command that has ended by itself, not by an error of ours."""
    result = CliRunner().invoke(app, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture(autouse=True)
def python_s_own_limit() -> Iterator[None]:
    """The longest cell that a command of its own process reads: packages that other tests import raise that limit."""
    before = csv.field_size_limit(131_072)
    yield
    csv.field_size_limit(before)


def damaged(root: Path, part: str) -> set[str]:
    """Write a run of three ranks in two formats with damaged files; return the names of these."""
    rank = a_run(root)
    parquet = write_run(root, 2, range(4), sink="parquet")
    write_manifest(parquet, {"rank": 2, "world_size": 3, "run": 0, "start_time": "2025-12-03T21:34:40+0800"})
    if part != "other formats":
        files = {f"other_{n}-{n}.csv": what for n, what in enumerate(FILES) if n % 2 == (part == "odd")}
        for name, what in files.items():
            (rank / name).write_bytes(FILES[what])
        return set(files)
    whole = sorted(parquet.glob("actv*.parquet"))[0].read_bytes()
    pages = whole[:60] + bytes(40) + whole[100:]
    contents = {
        parquet / "other_0-0.parquet": b"PAR1 is how it begins",
        parquet / "other_1-1.parquet": pages,
        parquet / "other_2-2.parquet": whole[:4] + whole[-4:],
        rank / "actv_0-0.parquet": pages,  # the same steps are in a CSV file
        rank / "grad_reduced_0-0.parquet": b"nothing",
        rank / "notes.csv": b"a,b\n",
        rank / "monitor_metrics.db": b"nothing",
    }
    for path, content in contents.items():
        path.write_bytes(content)
    tables = {parquet / f"foreign{n}_0-3.parquet": query for n, query in enumerate(FOREIGN_TABLES.values())}
    for path, query in tables.items():
        duckdb.sql(query).write_parquet(str(path))
    return {path.name for path in (*contents, *tables)}


@pytest.mark.parametrize("part", ["even", "odd", "other formats"])
def test_every_command_leaves_out_the_same_damaged_files(tmp_path: Path, part: str) -> None:
    """All of them are named, with exit code 1, and the rest is read."""
    names = damaged(tmp_path / "run", part)
    damaged(tmp_path / "other", part)
    reading = commands(tmp_path / "run", tmp_path / "other", tmp_path)
    table = "actv" if part == "other formats" else "other"  # a query finds damaged lines of what it reads
    reading["sql"] = ["sql", str(tmp_path / "run"), f"SELECT count(*) FROM {table}"]
    del reading["status"]  # it reads no rows
    for command, arguments in reading.items():
        result = ended(arguments)
        text = result.output.replace("\n", "")
        assert result.exit_code == 1, (command, result.output)
        assert {name for name in names if f"{name}:" in text} == names, command
    with closing(sqlite3.connect(tmp_path / "db" / "monitor_metrics.db")) as database:
        for kind, rows in GOOD_ROWS.items():
            assert database.execute(f"SELECT count(*) FROM {kind}_rows WHERE rank = 0").fetchone() == (rows,)
        if part != "other formats":
            (kept,) = database.execute("SELECT count(*) FROM other_rows WHERE target_name = 'fc.weight'").fetchone()
            assert kept > 0


@pytest.mark.parametrize("part", ["even", "odd", "other formats"])
def test_the_page_leaves_out_the_same_damaged_files(tmp_path: Path, part: str) -> None:
    """Once the signals are shown; Parquet whose steps are in CSV files is not opened."""
    names = damaged(tmp_path / "run", part) - {"actv_0-0.parquet"}
    with viewing(tmp_path / "server", tmp_path / "run") as server:
        for signal, op in (("actv", "max"), ("grad_reduced", "max"), ("other", "norm"), *FOREIGN_SIGNALS):
            for _ in range(2):  # the first request that meets a damaged file fails
                server.client.get("/api/runs/0/heatmap", params={"signal": signal, "op": op})
        text = "\n".join(server.get("/api/runs/0")["problems"])
    assert {name for name in names if f"{name}:" in text} == names


def test_an_op_that_cannot_be_merged_is_named(tmp_path: Path) -> None:
    """The others of the file are merged."""
    rank = a_run(tmp_path / "run", ranks=1)
    (rank / "weight_0-0.csv").write_bytes(HEADER.replace(b"norm", b"norm,flatness") + ROW.replace(b",1,", b",1,2,"))
    result = ended(["merge", str(tmp_path / "run"), "-o", str(tmp_path / "merged")])
    text = result.output.replace("\n", "")
    assert result.exit_code == 1
    assert "weight_0-0.csv:1:expectedops;'flatness'cannotbemerged:leftout" in "".join(text.split())
    header, row = (tmp_path / "merged" / "weight_0-0.csv").read_text().splitlines()
    assert header.split(",")[:4] == ["vpp_stage", "name", "step", "norm"]
    assert row.startswith("0,fc.weight,0,1,")


def test_a_database_beside_files_is_named_by_conversions(tmp_path: Path) -> None:
    """As a loss, with exit code 1, if it has later steps than the files; else as a note."""
    rank = write_run(tmp_path / "run", 0, range(4))
    for number, (steps_of, code) in enumerate([(range(4), 0), (range(6), 1)]):
        path = write_run(tmp_path / f"database{number}", 0, steps_of, sink="sqlite") / "monitor_metrics.db"
        shutil.copy(path, rank / path.name)
        result = ended(["csv2db", str(tmp_path / "run"), "-o", str(tmp_path / f"db{number}")])
        assert (result.exit_code, "monitor_metrics.db: " in result.output.replace("\n", "")) == (code, True)


@pytest.mark.parametrize("content", READABLE.values(), ids=READABLE)
def test_odd_files_are_read(tmp_path: Path, content: bytes) -> None:
    """By DuckDB and by Python alone, with the same rows."""
    rank = a_run(tmp_path, ranks=1)
    (rank / "other_0-1.csv").write_bytes(content)
    found = []
    for reader in (Rows, PlainRows):
        problems = Problems()
        rows = reader(last_run(tmp_path, problems).directories, problems)
        read = [(step.step, batch) for step in steps(rows, 0, signals=["other"]) for batch in step.batches]
        found.append([(step, batch.keys, batch.op("norm").tolist()) for step, batch in read])
        if isinstance(rows, Rows):
            rows.close()
    assert found[0] == found[1]
    assert [step for step, *_ in found[0]] == list(range(content.count(b"fc.weight")))
    ended(["merge", str(tmp_path), "-o", str(tmp_path / "merged")])


PROGRAM = """
import json, sys
from pathlib import Path
from tests.core.storage.test_damaged_files import ended
for arguments in json.load(sys.stdin):
    result = ended(arguments)
    print(json.dumps([result.exit_code, result.output]), flush=True)
status = Path("/proc/self/status").read_text()  # ru_maxrss would include what the process that started this one held
print(json.dumps(int(status.partition("VmHWM:")[2].split()[0])))
"""


def in_a_process(listed: list[list[str]]) -> tuple[list[tuple[int, str]], int]:
    """Exit code and output of each command, run one after the other; the most memory, in KiB."""
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(listed),
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    *results, memory = map(json.loads, ran.stdout.splitlines())
    return [tuple(result) for result in results], memory


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    """A FIFO without a writer, a socket and a folder, under any name, hold no command up."""
    rank = a_run(tmp_path / "run")
    a_run(tmp_path / "other")
    for name in ("other_0-0.csv", "other_1-1.parquet"):
        os.mkfifo(rank / name)
    (rank / "other_2-2.csv").mkdir()
    (rank / "other_3-3.csv").symlink_to("/dev/zero")
    (rank / "other_4-4.csv").symlink_to(rank / "nowhere")
    (rank / "manifest.json").unlink()
    os.mkfifo(rank / "manifest.json")
    listed = commands(tmp_path / "run", tmp_path / "other", tmp_path)
    with closing(socket.socket(socket.AF_UNIX)) as bound:
        here = Path.cwd()
        os.chdir(rank)  # a socket's path is short
        bound.bind("other_5-5.csv")
        os.chdir(here)
        results, _ = in_a_process(list(listed.values()))
    for command, (code, output) in zip(listed, results, strict=True):
        assert code in (0, 1), (command, output)
        if command in ("anomalies", "compare", "csv2db", "csv2tb"):
            text = output.replace("\n", "")
            for name in ("other_0-0.csv", "other_1-1.parquet", "other_2-2.csv", "other_3-3.csv", "other_5-5.csv"):
                assert f"{name}: " in text, (command, name)
            assert "expected a regular file" in text


def test_files_of_gigabytes_of_zeros_are_left_out(tmp_path: Path) -> None:
    """A block of zeros that a file system left in a file is named once, within bounded time and memory."""
    rank = a_run(tmp_path / "run", ranks=1)
    for number, (before, behind) in enumerate([(b"", b""), (HEADER, b""), (HEADER + ROW, b"\n" + ROW)]):
        with (rank / f"other_{number}-{number}.csv").open("wb") as file:
            file.write(before)
            file.truncate(2 << 30)
            file.seek(0, os.SEEK_END)
            file.write(behind)
    listed = commands(tmp_path / "run", tmp_path / "run", tmp_path)
    results, memory = in_a_process(list(listed.values()))
    assert memory < 1 << 20  # KiB
    for command, (code, output) in zip(listed, results, strict=True):
        assert code == (0 if command == "status" else 1), (command, output)
        if command in ("anomalies", "compare", "csv2db", "csv2tb", "merge"):
            text = output.replace("\n", "")
            times = {text.count(f"other_{number}-{number}.csv") for number in range(3)}
            assert times == {2 if command == "compare" else 1}, command


@pytest.mark.parametrize("place", [0.1, 0.3, 0.5])
def test_zeros_in_a_parquet_file_end_no_command(tmp_path: Path, place: float) -> None:
    """A block that a disk has lost: the file is left out, or its numbers are read, which no checksum guards."""
    rank = write_run(tmp_path / "run", 0, range(4), sink="parquet", steps_per_file=4)
    path = rank / "actv_0-3.parquet"
    data = bytearray(path.read_bytes())
    begin = int(place * len(data))
    data[begin : begin + 64] = bytes(64)
    path.write_bytes(data)
    result = ended(["anomalies", str(tmp_path / "run")])
    assert result.exit_code in (0, 1)
    assert (result.exit_code == 1) == ("actv_0-3.parquet" in result.output.replace("\n", "") or "NaN" in result.output)
