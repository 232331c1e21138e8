"""SQL over a run: its numbers beside NumPy's, and everything that a query may not do."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe.core.analysis.engines.workers import LocalEngine
from probe.core.analysis.query import OpenRun, open_run
from probe.core.analysis.select_statement import NOT_CALLED
from tests.core.storage.run_files import cells_of, write_run
from tests.required import require

require("duckdb")

RANKS, STEPS = range(5), range(7)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of five ranks; the last has written Parquet, and one number each is NaN, infinite and tiny."""
    root: Path = tmp_path_factory.mktemp("outer") / "run"
    for rank in RANKS[:-1]:
        write_run(root, rank, STEPS)
    write_run(root, RANKS[-1], STEPS, sink="parquet")
    wrong = {(1, 3): "nan", (2, 3): "-inf", (3, 5): "5e-324", (0, 1): "0.1234567890123456789"}
    for (rank, step), value in wrong.items():
        [path] = root.glob(f"*-rank{rank}-*/grad_reduced_{step}-{step}.csv")
        header, *lines = path.read_text().splitlines()
        cells = lines[0].split(",")
        cells[header.split(",").index("max")] = value
        path.write_text("\n".join([header, ",".join(cells), *lines[1:]]) + "\n")
    return root


@pytest.fixture(scope="module")
def run(root: Path) -> Iterator[OpenRun]:
    with open_run(root) as opened:
        yield opened


def numbers(root: Path, signal: str, op: str) -> dict[tuple[int, int, str, int], float]:
    """Every number of a signal by rank, step, name and micro step, from CSV as Python reads it."""
    found = {}
    for rank in RANKS[:-1]:
        for directory in root.glob(f"*-rank{rank}-*"):
            for place, step, value in cells_of(directory, rank):
                if place[1] == signal and place[5] == op:
                    found[rank, step, place[3], place[4]] = value
    return found


def only(run: OpenRun, query: str) -> Any:
    """The one value of an answer."""
    [(value,)] = run.answer(query).rows()
    return value


CSV_RANKS = f"rank < {RANKS[-1]}"


def test_every_number_is_that_of_the_files(root: Path, run: OpenRun) -> None:
    """Row by row and digit by digit, NaN and infinities included."""
    expected = numbers(root, "actv", "min")
    query = f"SELECT rank, step, name, micro_step, min FROM actv WHERE {CSV_RANKS}"
    assert {row[:4]: row[4] for row in run.answer(query).rows()} == expected
    expected = numbers(root, "grad_reduced", "max")
    found = {
        row[:4]: row[4] for row in run.answer(query.replace("actv", "grad_reduced").replace("min F", "max F")).rows()
    }
    assert found.keys() == expected.keys()
    assert all(repr(found[place]) == repr(value) for place, value in expected.items())
    assert {"nan", "-inf", "5e-324", "0.12345678901234568"} <= {repr(value) for value in found.values()}


def test_aggregates_are_numpys(root: Path, run: OpenRun) -> None:
    """Greatest value with its place, number, mean and sum of squares by rank."""
    expected = numbers(root, "actv", "max")
    query = f"""SELECT rank, count(*), max(max), arg_max((step, name, micro_step), max), avg(max), sum(max * max)
        FROM actv WHERE {CSV_RANKS} GROUP BY rank ORDER BY rank"""
    for rank, number, greatest, where, mean, squares in run.answer(query).rows():
        own = {place: value for place, value in expected.items() if place[0] == rank}
        values = np.array(list(own.values()))
        at = max(own, key=own.__getitem__)
        assert (number, greatest, tuple(where)) == (len(own), values.max(), at[1:])
        np.testing.assert_allclose([mean, squares], [values.mean(), np.square(values).sum()], rtol=1e-12)


def test_two_queries_over_pieces_give_what_one_gives(root: Path) -> None:
    """With any number of pieces, in one process or two: the same extremes, counts and places; sums to rounding."""
    map_query = """SELECT rank, max(max) AS top, arg_max(name, max) AS name, count(*) AS number, sum(max) AS total,
        sum(step) AS steps FROM actv GROUP BY rank ORDER BY rank"""
    reduce_query = "SELECT max(top), arg_max(name, top), sum(number), sum(total), sum(steps) FROM mapped"
    with open_run(root) as whole:
        [expected] = whole.answer("SELECT max(max), arg_max(name, max), count(*), sum(max), sum(step) FROM actv").rows()
        assert len(whole.pieces(map_query, 1)) == len(RANKS)
    for processes, size in ((1, 1), (1, 1 << 30), (2, 1)):
        with open_run(root, LocalEngine(processes)) as run, run.reduced(map_query, reduce_query, size) as answer:
            [found] = answer.rows()
        assert found[:3] == expected[:3]
        assert found[4] == expected[4] == sum(STEPS) * len(RANKS) * 4
        assert math.isclose(found[3], expected[3], rel_tol=1e-12)


def test_pieces_come_in_the_order_of_ranks(root: Path) -> None:
    """A piece without a row of the signal, or without one of its columns, has the columns of the run."""
    map_query = "SELECT rank, step, max FROM grad_reduced WHERE name = 'fc.input' ORDER BY step"
    with open_run(root, LocalEngine(2)) as run, run.reduced(map_query, "FROM mapped", 1) as answer:
        rows = list(answer.rows())
        alike = [row[:2] for row in rows]
        one = [row[:2] for row in run.answer(map_query.replace("BY step", "BY rank, step")).rows()]
    assert alike == sorted(alike) == one


def test_a_rank_without_a_signal_is_a_piece_without_rows(tmp_path: Path) -> None:
    """And a rank whose files lack a number has NULL there, in its own piece too."""
    for rank in range(3):
        write_run(tmp_path, rank, [0, 1])
    for path in tmp_path.glob("*-rank1-*/actv_*"):
        path.unlink()
    for path in tmp_path.glob("*-rank2-*/actv_*"):
        with path.open(newline="") as file:
            rows = list(csv.reader(file))
        at = rows[0].index("max")
        path.write_text("".join(",".join(row[:at] + row[at + 1 :]).replace(", ", "; ") + "\n" for row in rows))
    query = "SELECT rank, count(*) AS n, count(max) AS m FROM actv GROUP BY rank"
    with open_run(tmp_path) as run, run.reduced(query, "FROM mapped ORDER BY rank", 1) as answer:
        assert list(answer.rows()) == [(0, 8, 8), (2, 8, 0)]
        assert not run.problems.skipped


def test_arrow_keeps_types_and_nan(root: Path) -> None:
    """NaN is NaN and no null; sums of whole numbers are exact."""
    try:
        arrow = require("pyarrow")
    except ImportError as unfit:  # a version for another NumPy
        pytest.skip(str(unfit))
    with open_run(str(root)) as run:
        table = run.sql("SELECT step, max, coverage FROM grad_reduced WHERE isnan(max)")
        assert table.schema == arrow.schema([("step", "int64"), ("max", "float64"), ("coverage", "string")])
        assert table["max"].null_count == 0
        assert math.isnan(table["max"][0].as_py())
        total = run.map_reduce("SELECT sum(step) AS s FROM actv", "SELECT sum(s + 9007199254740993) AS s FROM mapped")
        assert total["s"].to_pylist() == [sum(STEPS) * 20 + 9007199254740993]


def test_what_there_is(run: OpenRun) -> None:
    """Each signal with its columns, rows, ranks and steps."""
    views = {view.signal: view for view in run.views()}
    assert list(views) == ["actv", "grad_reduced"]
    assert views["actv"][2:] == (len(RANKS) * len(STEPS) * 4, len(RANKS), 0, 6)
    assert views["actv"].columns[:3] == ("rank", "directory", "vpp_stage")
    assert views["actv"].columns[-2:] == ("min", "max")
    assert only(run, "SELECT count(DISTINCT directory) FROM actv WHERE directory LIKE 'Dec03_21-34-40-rank%'") == 5


HARMLESS = (
    "FROM actv",
    "WITH q AS (SELECT step, max(max) AS m FROM actv GROUP BY step) SELECT * FROM q JOIN grad_reduced USING (step)",
    "SELECT * FROM (PIVOT actv ON rank IN (0, 1) USING max(max) GROUP BY step)",
    "SELECT step, lag(max) OVER (PARTITION BY name ORDER BY step) FROM Actv QUALIFY row_number() OVER () < 3",
    "SELECT a.step FROM actv a, range(3) r(i), LATERAL (SELECT i + 1 AS j) WHERE a.step IN (SELECT 2) AND j > 1",
    "WITH RECURSIVE r AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM r WHERE i < 3) SELECT * FROM r",
    "SELECT list_transform([max], lambda x: x + 1) FROM actv; -- a comment",
    "DESCRIBE actv",
    "SUMMARIZE grad_reduced",
    "SELECT DISTINCT ON (rank) * EXCLUDE (shape) FROM actv ORDER BY rank, step LIMIT 5 OFFSET 1",
    "VALUES (1), (2) UNION ALL SELECT step FROM actv",
)


@pytest.mark.parametrize("query", HARMLESS)
def test_queries_that_only_read_are_answered(run: OpenRun, query: str) -> None:
    """Joins, windows, recursion, lambdas, pivots and descriptions."""
    assert list(run.answer(query).rows())


def hostile(root: Path) -> tuple[str, ...]:
    """Queries that would do something else than read the run."""
    outside, inside = root.parent / "outside.csv", root / "made.csv"
    return (
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        f"SELECT * FROM '{outside}'",
        f"SELECT * FROM '{root}/../outside.csv'",
        f"FROM read_csv_auto('{outside}')",
        f"FROM read_parquet('{root}/**/*.parquet')",
        f"FROM read_json('{outside}')",
        "FROM read_text('/etc/passwd')",
        "FROM read_blob('/etc/passwd')",
        f"FROM sniff_csv('{outside}')",
        f"FROM parquet_metadata('{outside}')",
        f"SELECT * FROM glob('{root.parent}/*')",
        "SELECT (SELECT count(*) FROM read_text('/etc/passwd')) FROM actv",
        "WITH q AS (FROM read_text('/etc/passwd')) SELECT * FROM actv, q",
        "SELECT 1 WHERE EXISTS (FROM read_text('/etc/passwd'))",
        "SELECT max FROM actv UNION ALL FROM read_text('/etc/passwd')",
        "FROM query('SELECT 1')",
        "FROM query_table('actv')",
        "FROM json_execute_serialized_sql('{}')",
        "FROM duckdb_settings()",
        "FROM duckdb_secrets()",
        "FROM pragma_table_info('actv')",
        "FROM pandas_scan(0)",
        "FROM python_map_function(0)",
        f"COPY actv TO '{inside}'",
        f"COPY (SELECT 1) TO '{outside}.parquet' (FORMAT parquet)",
        f"EXPORT DATABASE '{root}'",
        f"ATTACH '{root}/x.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "FROM 'https://example.invalid/x.parquet'",
        "FROM 's3://bucket/x.parquet'",
        "PRAGMA database_list",
        "PRAGMA enable_profiling",
        "SET threads = 1",
        "SET VARIABLE x = 1",
        "RESET threads",
        "SELECT getenv('HOME')",
        "SELECT current_setting('temp_directory')",
        "SELECT getvariable('directories')",
        "SELECT write_log('x')",
        "SELECT pg_sleep(1)",
        "CREATE TABLE x AS FROM actv",
        "CREATE SECRET (TYPE s3)",
        "CREATE MACRO f() AS TABLE FROM read_text('/etc/passwd')",
        "DROP VIEW actv",
        "INSERT INTO actv VALUES (1)",
        "WITH q AS (INSERT INTO x VALUES (1) RETURNING *) FROM q",
        "DELETE FROM actv",
        "UPDATE actv SET max = 0",
        "TRUNCATE actv",
        "CALL duckdb_settings()",
        "CHECKPOINT",
        "USE main",
        "BEGIN",
        "EXPLAIN ANALYZE SELECT 1",
        "PREPARE q AS SELECT 1",
        "EXECUTE q",
        "SHOW TABLES",
        "SHOW ALL TABLES",
        "SELECT * FROM (SHOW TABLES)",
        "SELECT * FROM main.directories",
        'FROM main."rows actv"',
        "FROM information_schema.tables",
        "FROM pg_catalog.pg_class",
        "FROM sqlite_master",
        "FROM duckdb_tables",
        "FROM reject_errors",
        "FROM memory.answers.actv",
        "FROM root",
        "SELECT 1; SELECT 2",
        "SELECT 1; DROP VIEW actv",
        "",
        ";",
        "-- nothing",
    )


def test_a_query_does_nothing_but_read_the_run(root: Path, run: OpenRun) -> None:
    """Files, networks, settings, the environment, variables of Python, other schemas, several statements: refused."""
    (root.parent / "outside.csv").write_text("x,y\n1,2\n")
    before = {path: path.stat().st_mtime_ns for path in root.parent.rglob("*")}
    for query in hostile(root):
        with pytest.raises(ValueError, match=r"expected|there is no|cannot"):
            list(run.answer(query).rows())
    assert {path: path.stat().st_mtime_ns for path in root.parent.rglob("*")} == before
    assert list(run.answer("SELECT 1").rows()) == [(1,)]


def test_the_connection_refuses_by_itself(root: Path, run: OpenRun) -> None:
    """The second wall, without the first: DuckDB opens no other file, and no setting can be changed back."""
    duckdb = require("duckdb")
    outside = root.parent / "outside.csv"
    outside.write_text("x,y\n1,2\n")
    connection = run._rows.connection
    for query in (
        "FROM read_csv('/etc/passwd')",
        f"FROM '{outside}'",
        f"FROM '{root}/../outside.csv'",
        "FROM read_text('/etc/passwd')",
        f"COPY actv TO '{root.parent}/made.csv'",
        f"ATTACH '{root.parent}/x.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "FROM 'https://example.invalid/x.parquet'",
        f"FROM glob('{root.parent}/*')",
        "SET enable_external_access = true",
        "SET lock_configuration = false",
        "SET allowed_directories = ['/']",
        f"SET temp_directory = '{root}'",
        "RESET enable_external_access",
        "FROM root",
    ):
        with pytest.raises(duckdb.Error):
            connection.execute(query).fetchall()
    assert not (root.parent / "made.csv").exists()


def test_a_link_in_a_rank_does_not_lead_a_query_elsewhere(root: Path, run: OpenRun) -> None:
    """The path of a file that belongs to no signal is no table either."""
    link = root / "passwd.csv"
    link.symlink_to("/etc/passwd")
    try:
        with pytest.raises(ValueError, match="there is no signal"):
            run.answer(f"FROM '{link}'")
    finally:
        link.unlink()


def test_variables_of_python_are_no_tables(run: OpenRun) -> None:
    """Not even one that is called as a query calls it."""
    secret = np.ones(3)
    with pytest.raises(ValueError, match="there is no signal 'secret'"):
        run.answer("FROM secret")
    assert secret.sum() == 3


def test_functions_that_are_refused_are_refused_in_every_place(run: OpenRun) -> None:
    """In a list, a condition, an order, a window, a lambda, a default of a macro."""
    for name in sorted(NOT_CALLED):
        for query in (
            f"SELECT {name}('x')",
            f"SELECT 1 FROM actv WHERE {name.upper()}('x') = 1",
            f"SELECT max FROM actv ORDER BY [{name}('x')]",
            f"SELECT list_transform([1], lambda x: {name}(x))",
            f"SELECT sum(max) OVER (PARTITION BY {name}('x')) FROM actv",
        ):
            with pytest.raises(ValueError, match=name):
                run.answer(query)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (
            "FROM grad_reducd",
            "there is no signal 'grad_reducd'; did you mean grad_reduced? There is actv, grad_reduced",
        ),
        ("SELECT stp FROM actv", "there is no column 'stp'; did you mean step? There is rank, directory,"),
        ("SELECT max AS top FROM actv WHERE a.dtyp = 'x'", "did you mean dtype?"),
        ("SELEC 1", "the query cannot be parsed"),
        ("SELECT max + 'x' FROM actv GROUP BY 1 HAVING", "the query cannot be parsed"),
        ("SELECT no_function(max) FROM actv", "the query cannot be answered: Catalog Error"),
    ],
)
def test_spelling_mistakes_name_the_nearest_name(run: OpenRun, query: str, message: str) -> None:
    """Of signals and of columns, with those that there are."""
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        run.answer(query)
    assert "\n" not in str(error.value)


def test_the_second_query_reads_the_answers_alone(root: Path) -> None:
    """Mistakes in it are found before any piece is read."""

    class Unused:
        width = 1

        def each(self, *_: object) -> Iterator[Any]:
            raise AssertionError("a piece was read")

    with open_run(root, Unused()) as run:
        for second, message in (
            ("FROM actv", "there is no table of the reduce query 'actv'; there is mapped"),
            ("SELECT tpo FROM mapped", "there is no column 'tpo'; did you mean top?"),
            ("FROM read_csv('/etc/passwd')", "the function read_csv cannot be read from"),
        ):
            with pytest.raises(ValueError, match=re.escape(message)):
                run.reduced("SELECT max(max) AS top FROM actv", second).__enter__()
        with pytest.raises(ValueError, match="reads no signal"):
            run.reduced("SELECT 1", "FROM mapped").__enter__()


def test_lines_that_cannot_be_read_are_problems(tmp_path: Path) -> None:
    """On one machine, and in pieces: the same ones, once."""
    for rank in range(2):
        write_run(tmp_path, rank, range(3))
    [path] = tmp_path.glob("*-rank1-*/actv_1-1.csv")
    path.write_text(path.read_text() + "0,fc.input,one,0,1.0,2.0,[3],float32\n")
    with open_run(tmp_path) as run:
        assert only(run, "SELECT count(*) FROM actv") == 24
    assert run.problems.skipped
    queries = "SELECT count(*) AS n FROM actv", "SELECT sum(n) FROM mapped"
    with open_run(tmp_path, LocalEngine(2)) as pieces, pieces.reduced(*queries, 1) as answer:
        assert list(answer.rows()) == [(24,)]
    assert pieces.problems.lines() == run.problems.lines()
    assert len(run.problems.lines()) == 1


def test_odd_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brackets, quotes, stars and blanks in the names of folders, and a path that is not from the root."""
    root = tmp_path / "a [1] it's" / "r*n"
    write_run(root, 0, [0])
    (tmp_path / "a [1] it's" / "ran").mkdir()
    monkeypatch.chdir(root.parent)
    for place in ("r*n", "../a [1] it's/r*n", str(root)):
        with open_run(place) as run:
            assert only(run, "SELECT count(*) FROM actv") == 4


def test_steps_of_a_resumed_run_count_once(tmp_path: Path) -> None:
    """As everywhere: the later directory replaces them."""
    write_run(tmp_path, 0, range(6))
    write_run(tmp_path, 0, range(4, 8), time="Dec03_22-00-00")
    with open_run(tmp_path) as run:
        query = "SELECT count(*), count(DISTINCT step), count(DISTINCT directory) FROM grad_reduced"
        assert list(run.answer(query).rows()) == [(16, 8, 2)]


def test_more_than_fits_into_memory_is_sorted_on_disk(root: Path, run: OpenRun) -> None:
    """The folder for it is none that a query may name; nothing is left of it."""
    query = "SELECT count(*) FROM (SELECT i, hash(i) AS h, repeat('x', 200) AS t FROM range(4000000) r(i) ORDER BY h) q"
    assert only(run, query) == 4_000_000


def test_nothing_is_left(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the folder for temporary files."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with open_run(root) as run, run.reduced("SELECT max FROM actv", "FROM mapped") as answer:
        assert list(answer.rows())
        assert any(tmp_path.iterdir())
    assert not any(tmp_path.iterdir())
