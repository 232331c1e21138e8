"""``probe sql``: formats of answers, exit codes and refusals."""

from __future__ import annotations

import csv
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from probe.cli import app
from probe.cli.sql import MOST_SHOWN
from probe.core.analysis.query_views import cell
from tests.core.analysis.test_query import hostile
from tests.core.storage.run_files import write_run
from tests.quick_python import probe_command
from tests.required import require

duckdb = require("duckdb")

EVERYTHING = """SELECT * FROM (VALUES (1, 0.1::DOUBLE, 'a,"b"', true, [1, NULL], 1.50),
    (2, 'nan'::DOUBLE, '', false, [], 2.00), (NULL, '-inf'::DOUBLE, NULL, NULL, NULL, NULL),
    (4, 5e-324::DOUBLE, 'two
lines', true, NULL, 3.00)) t(n, x, s, b, l, d)"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks, three steps."""
    root: Path = tmp_path_factory.mktemp("runs") / "run"
    for rank in range(2):
        write_run(root, rank, range(3))
    return root


def run(*words: object) -> Result:
    return CliRunner().invoke(app, ["sql", *map(str, words)])


def test_without_a_query_the_tables_are_listed(root: Path) -> None:
    """With their rows, ranks, steps and columns."""
    done = run(root)
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "Dec03_21-34-40-rank0-00000000: 2 tables",
        "actv: 24 rows of 2 ranks, steps 0 to 2",
        "  rank, directory, vpp_stage, name, step, micro_step, call, shape, dtype, coverage, min, max",
        "grad_reduced: 12 rows of 2 ranks, steps 0 to 2",
        "  rank, directory, vpp_stage, name, step, micro_step, call, shape, dtype, coverage, min, max",
    ]


def test_csv_has_every_digit(root: Path, tmp_path: Path) -> None:
    """In a file and on standard output; NULL is empty, an empty text is quoted."""
    out = tmp_path / "answer.csv"
    assert run(root, EVERYTHING, "-o", out).exit_code == 0
    assert out.read_text() == (
        'n,x,s,b,l,d\n1,0.1,"a,""b""",true,"[1, null]",1.50\n2,nan,"",false,[],2.00\n,-inf,,,,\n'
        '4,5e-324,"two\nlines",true,,3.00\n'
    )
    printed = run(root, EVERYTHING, "--format", "csv").stdout
    assert printed == out.read_text().replace('"two\nlines"', "two\\nlines")
    with out.open(newline="") as file:
        assert [float(row["x"]) for row in csv.DictReader(file)][2:] == [-math.inf, 5e-324]


def test_json_can_be_read_by_any_parser(root: Path, tmp_path: Path) -> None:
    """NaN and the infinities are texts, which Python's float turns back into numbers."""
    out = tmp_path / "answer.json"
    assert run(root, EVERYTHING, "-o", out).exit_code == 0
    refuse: Any = pytest.fail
    found = json.loads(out.read_text(), parse_constant=refuse)
    assert [row["x"] for row in found] == [0.1, "nan", "-inf", 5e-324]
    assert found[0] == {"n": 1, "x": 0.1, "s": 'a,"b"', "b": True, "l": [1, None], "d": "1.50"}
    assert found[1]["d"] == 2
    assert found[3]["s"] == "two\nlines"
    assert json.loads(run(root, "SELECT 1 AS n WHERE false", "--format", "json").stdout) == []


def test_parquet_is_the_answer(root: Path, tmp_path: Path) -> None:
    """With the types of the query; sums of whole numbers are exact."""
    out = tmp_path / "answer.parquet"
    assert run(root, "SELECT rank, max, sum(step) OVER () AS s FROM actv ORDER BY ALL", "-o", out).exit_code == 0
    read = duckdb.connect().execute(f"SELECT count(*), typeof(any_value(max)), any_value(s) FROM '{out}'").fetchall()
    assert read == [(24, "DOUBLE", 24)]
    assert [path.name for path in tmp_path.iterdir()] == ["answer.parquet"]


def test_a_table_shows_the_beginning_of_a_long_answer(root: Path) -> None:
    """And a line on standard error how to get the rest."""
    done = run(root, f"SELECT i FROM range({MOST_SHOWN + 1}) r(i)")
    assert len(done.stdout.splitlines()) == MOST_SHOWN + 1
    assert f"the first {MOST_SHOWN:,} rows are shown" in done.stderr
    assert run(root, f"SELECT i FROM range({MOST_SHOWN}) r(i)").stderr == ""


def test_cells_of_a_table(root: Path) -> None:
    """All digits, NaN, no markup."""
    done = run(root, "SELECT 0.1::DOUBLE + 0.2::DOUBLE AS x, 'nan'::DOUBLE AS y, '[red]' AS z")
    assert done.stdout.split() == ["x", "y", "z", "0.30000000000000004", "nan", "[red]"]
    assert cell(float("-inf")) == "-inf"


def test_two_queries(root: Path) -> None:
    """In one process and in two."""
    map_query, reduce_query = "SELECT rank, max(max) AS m FROM actv GROUP BY rank", "SELECT max(m) AS m FROM mapped"
    expected = run(root, "SELECT max(max) AS m FROM actv", "--format", "csv").stdout
    for processes in (1, 2):
        done = run(root, "--map", map_query, "--reduce", reduce_query, "-j", processes, "--format", "csv")
        assert (done.exit_code, done.stdout) == (0, expected)


def test_wrong_use_is_a_line_and_exit_code_2(root: Path, tmp_path: Path) -> None:
    """And no file is left, or changed."""
    [directory] = root.glob("*-rank0-*")
    for words, message in (
        (("FROM actw",), "did you mean actv?"),
        (("SELECT '\udcff'",), "the query cannot be parsed: 'utf-8' codec can't encode"),
        (("FROM actv", "--map", "FROM actv"), "expected one query, or both --map and --reduce"),
        (("--map", "FROM actv"), "expected one query, or both --map and --reduce"),
        (
            ("FROM actv", "-o", tmp_path / "x.txt"),
            "expected a name that ends with one of .csv, .json, .parquet",
        ),
        (("FROM actv", "-o", tmp_path / "no" / "x.csv"), "in a directory that exists"),
        (("FROM actv", "-o", directory / "actv_0-0.csv"), "outside of the directories of ranks"),
        (("FROM actv", "--format", "parquet"), "expected -o"),
        (("SELECT error('x')", "-o", tmp_path / "x.csv"), "cannot be answered"),
        (("--map", "FROM actv", "--reduce", "FROM mapped", "--engine", "slurm"), "expected local, ray"),
    ):
        done = run(root, *words)
        assert done.exit_code == 2, words
        assert message in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert done.stdout == ""
    assert not any(tmp_path.iterdir())


def test_a_reader_that_has_seen_enough_ends_it(root: Path) -> None:
    """As of ``| head``: without a word."""
    reader, writer = os.pipe()
    os.close(reader)
    command = probe_command("sql", root, "SELECT i FROM range(50000) r(i)", "--format", "csv")
    with os.fdopen(writer, "wb") as gone:
        done = subprocess.run(command, stdout=gone, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (1, b"")


def test_letters_that_the_terminal_lacks_are_escaped(root: Path) -> None:
    """With the code that they have."""
    command = [sys.executable, "-m", "probe", "sql", str(root), "SELECT '\u6743' AS x"]
    done = subprocess.run(command, capture_output=True, env=os.environ | {"PYTHONIOENCODING": "ascii"}, check=False)
    assert (done.returncode, done.stdout.split()) == (0, [b"x", rb"\u6743"])


def test_hostile_queries_are_wrong_use(root: Path) -> None:
    """A sample of those of the other test, through the command."""
    for query in hostile(root)[:-3:8]:
        assert run(root, query).exit_code == 2, query


def test_data_that_are_left_out_are_exit_code_1(tmp_path: Path) -> None:
    """The answer is printed, and the line that it lacks."""
    write_run(tmp_path, 0, [0])
    [path] = tmp_path.glob("*/actv_0-0.csv")
    path.write_text(path.read_text() + "0,fc.input,one,0,1.0,2.0,[3],float32\n")
    done = run(tmp_path, "SELECT count(*) AS n FROM actv", "--format", "csv")
    assert (done.exit_code, done.stdout) == (1, "n\n4\n")
    assert "actv_0-0.csv:6" in done.stderr


def test_a_refusal_says_what_was_left_out(tmp_path: Path) -> None:
    """A table may be missing because its file was: the file is named before."""
    write_run(tmp_path, 0, [0])
    for path in tmp_path.glob("*/actv_*.csv"):
        path.write_text(path.read_text().replace(",", ";"))
    done = run(tmp_path, "SELECT * FROM actv")
    assert done.exit_code == 2
    assert [("actv_0-0.csv:1" in line, "no signal 'actv'" in line) for line in done.stderr.splitlines()] == [
        (True, False),
        (False, True),
    ]
    for path in tmp_path.glob("*/*.csv"):
        path.unlink()
    assert "no signal 'actv', nor another: expected rows, got none" in run(tmp_path, "SELECT * FROM actv").stderr
