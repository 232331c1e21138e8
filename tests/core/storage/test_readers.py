"""Rows of ranks are read back as written, by DuckDB and by Python alone."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe.core.backend.numpy_moments import moments
from probe.core.moments import columns_for
from probe.core.output.sinks.csv import CsvSink
from probe.core.output.sinks.parquet import ParquetSink
from probe.core.records import Batch, Coverage, Key, Snapshot
from probe.core.storage.batches import StoredStep, steps
from probe.core.storage.csv_reader import PlainRows
from probe.core.storage.directories import RankDirectory, last_run
from probe.core.storage.duckdb_reader import Rows, connect
from probe.core.storage.manifest import Manifest
from probe.core.storage.problems import Problems
from probe.core.storage.run_directory import write_manifest
from tests.core.output.sink_data import context
from tests.required import require

require("duckdb")

OPS = ("min", "max", "mean", "norm", "zeros", "nans", "infs", "std")
COLUMNS = columns_for(OPS)
READERS = (Rows, PlainRows)


def batch(signal: str, step: int, rows: dict[Key, Any], **fields: Any) -> Batch:
    """The moments of ``rows``."""
    block = np.array([moments([x], COLUMNS, 1e-8)[0] for x in rows.values()])
    return Batch(
        signal=signal,
        step=step,
        keys=tuple(rows),
        shapes=tuple(x.shape for x in rows.values()),
        dtypes=("torch.float32",) * len(rows),
        order=np.arange(len(rows)),
        columns={name: block[:, n] for n, name in enumerate(COLUMNS)},
        **fields,
    )


def write(root: Path, batches: Iterable[Batch], rank: int = 0, ops: tuple[str, ...] = OPS, **fields: Any) -> Path:
    """As a rank does; its directory."""
    directory = root / f"Dec03_21-34-40-rank{rank}-0000000{rank}"
    sink = CsvSink(context(root, directory=directory, rank=rank, **fields))
    sink.open()
    write_manifest(directory, {"rank": rank, "world_size": 1, "run": 0, "start_time": "2025-12-03T21:34:40+0800"})
    for each in batches:
        sink.write(Snapshot(each.step, rank, 0.0, [each], ops))
    return directory


def read(root: Path, reader: Any, **wanted: Any) -> tuple[list[StoredStep], Problems]:
    problems = Problems()
    directories = last_run(root, problems).directories
    rows = reader(directories, problems)
    found = list(steps(rows, 0, **wanted))
    if isinstance(rows, Rows):
        rows.close()
    return found, problems


def assert_same(found: Batch, wanted: Batch, ops: tuple[str, ...] = OPS, digits: float = 5e-6) -> None:
    """Fields of a batch except ``order``, which files lack; numbers to their printed digits."""
    for field in ("signal", "step", "keys", "shapes", "dtypes", "micro_stepped", "coverage"):
        assert getattr(found, field) == getattr(wanted, field), field
    for op in ops:
        np.testing.assert_allclose(found.op(op), wanted.op(op), rtol=digits, atol=1e-7, err_msg=op)


RANDOM = np.random.default_rng(8)
ODD = ["a,b", 'say "x"', "two\nlines", "per%cent", "größe", "", " blank "]


def cases() -> dict[str, tuple[list[Batch], tuple[str, ...]]]:
    """Batches of every kind, with the ops to write."""

    def draw(*shape: int) -> Any:
        return RANDOM.normal(0.5, 2, shape)

    odd = np.array([np.nan, 1.0, -np.inf, 0.0, 3e38, -1e-30]).reshape(3, 2)
    covered = (Coverage((8, 4), "0:16", (0, 1)), None, Coverage((6,), "dim 0: 1/2", (0, 2, 4), term=True))
    parts = {
        Key("fc", "input_1", 1, 0, 2): draw(3, 2),
        Key("", "output", 0): draw(2),
        Key("a.b", "input"): draw(2, 2, 2),
    }
    calls = {Key("fc", "output", 0, call): draw(3, 2) for call in range(3)}
    return {
        "parameters": (
            [batch("grad_reduced", s, {Key("fc.weight"): draw(3, 4), Key("b"): draw()}) for s in (0, 1, 7)],
            OPS,
        ),
        "activations": ([batch("actv", s, dict(parts), micro_stepped=True) for s in range(3)], OPS),
        "calls": ([batch("actv_grad", s, dict(calls), micro_stepped=True) for s in range(2)], OPS),
        "calls that come later": (
            [
                batch("actv", 0, {Key("fc", "output"): draw(3, 2)}, micro_stepped=True),
                batch("actv", 1, dict(calls), micro_stepped=True),
            ],
            OPS,
        ),
        "not finite": ([batch("param_origin", 0, {Key("w"): odd, Key("v"): np.full(3, np.inf)})], OPS),
        "shared": (
            [batch("exp_avg", 0, {Key("x"): draw(16), Key("y"): draw(2), Key("z"): draw(6)}, coverage=covered)],
            OPS,
        ),
        "other names": ([batch("grad_reduced", 0, {Key(name): draw(2) for name in ODD})], OPS),
        "state called anything": ([batch("my state/é", 0, {Key("w"): draw(2)})], OPS),
        "few ops": ([batch("grad_reduced", 4, {Key("w"): draw(2)})], ("norm",)),
    }


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("case", cases())
def test_what_was_written_is_read(tmp_path: Path, reader: Any, case: str) -> None:
    """Keys, shapes, dtypes, what is covered and all numbers, whatever the names."""
    batches, ops = cases()[case]
    write(tmp_path, batches, ops=ops, steps_per_file=2)
    found, problems = read(tmp_path, reader)
    assert problems.lines() == []
    assert [step.step for step in found] == [each.step for each in batches]
    for step, wanted in zip(found, batches, strict=True):
        (each,) = step.batches
        assert_same(each, wanted, ops)
        assert step.ops == ops


@pytest.mark.parametrize("reader", READERS)
def test_signals_of_a_step_come_together(tmp_path: Path, reader: Any) -> None:
    """In the order in which a step takes its course; a signal that misses a step is missing there."""
    rows = {Key("w"): RANDOM.normal(size=3)}
    written = [("grad_reduced", (0, 1, 2)), ("param_updated", (0, 2)), ("actv", (1, 2)), ("param_origin", (0, 1, 2))]
    write(tmp_path, [batch(signal, s, rows) for signal, there in written for s in there], steps_per_file=2)
    found, _ = read(tmp_path, reader)
    assert {step.step: [each.signal for each in step.batches] for step in found} == {
        0: ["param_origin", "grad_reduced", "param_updated"],
        1: ["param_origin", "actv", "grad_reduced"],
        2: ["param_origin", "actv", "grad_reduced", "param_updated"],
    }


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(("first", "last"), [(None, None), (3, None), (None, 4), (3, 7), (4, 4), (20, None), (8, 2)])
def test_a_range_of_steps(tmp_path: Path, reader: Any, first: int | None, last: int | None) -> None:
    """From ``first`` to ``last``, both included, also where files end at other steps and columns change."""
    rows = {Key("w"): RANDOM.normal(size=3)}
    write(tmp_path, [batch("grad_reduced", s, rows) for s in range(6)], steps_per_file=4)
    write(tmp_path, [batch("grad_reduced", s, rows) for s in range(6, 10)], steps_per_file=4, ops=("norm", "max"))
    found, problems = read(tmp_path, reader, first=first, last=last)
    low, high = (0 if first is None else first), (9 if last is None else last)
    assert [step.step for step in found] == [s for s in range(10) if low <= s <= high]
    assert [step.ops for step in found] == [OPS if step.step < 6 else ("norm", "max") for step in found]
    assert problems.lines() == []


@pytest.mark.parametrize("reader", READERS)
def test_rows_that_come_twice_are_read_as_written_last(tmp_path: Path, reader: Any) -> None:
    """The file is reported."""
    old, new = ({Key("w"): RANDOM.normal(size=3), Key("v"): RANDOM.normal(size=3)} for _ in range(2))
    write(tmp_path, [batch("grad_reduced", 0, old), batch("grad_reduced", 0, new)])
    (step,), problems = read(tmp_path, reader)
    assert_same(step.batches[0], batch("grad_reduced", 0, new))
    assert "grad_reduced: step 0 has 2 rows twice: the later ones are taken" in "".join(problems.lines())
    assert not problems.skipped


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("steps_per_file", [1, 9])
def test_steps_that_go_back_are_told(tmp_path: Path, reader: Any, steps_per_file: int) -> None:
    """Repeated steps are reported once, in the same file or in a later one, and stay together; others are not."""
    rows = {Key("w"): RANDOM.normal(size=3)}
    signals = ["grad_reduced", "param_origin"]
    told = [batch(signal, step, rows) for step in range(3) for signal in signals]
    directory = write(tmp_path, told, steps_per_file=steps_per_file)
    assert read(tmp_path, reader)[1].lines() == []
    for signal in signals:
        lines = (directory / f"{signal}_0-{steps_per_file - 1}.csv").read_text(encoding="utf-8").splitlines()
        last = max(directory.glob(f"{signal}_*.csv"))
        last.write_text(last.read_text(encoding="utf-8") + lines[1] + "\n", encoding="utf-8")
    found, problems = read(tmp_path, reader)
    assert [[step.step, *(each.signal for each in step.batches)] for step in found] == [
        [step, "param_origin", "grad_reduced"] for step in (0, 1, 2, 0)
    ]
    assert problems.lines() == [
        f"{directory}: {signal}: step 2 is followed by step 0: steps that come again are all taken"
        for signal in signals
    ]


def _cell(path: Path, line: int, column: str, text: str) -> None:
    """Puts ``text`` into one cell of a file whose rows have no quoted commas before it."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    at = lines[0].rstrip().split(",").index(column)
    cells = lines[line - 1].split(",")
    cells[at] = text
    lines[line - 1] = ",".join(cells)
    path.write_text("".join(lines), encoding="utf-8")


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("norm", "much"),
        ("step", "one"),
        ("step", "-1"),
        ("step", "9" * 20),
        ("vpp_stage", "9" * 10),
        ("vpp_stage", ""),
        ("min", "1,2"),
    ],
)
def test_a_line_that_cannot_be_read_is_told(tmp_path: Path, reader: Any, column: str, text: str) -> None:
    """With its file and number; the others are read."""
    rows = {Key(name): RANDOM.normal(size=3) for name in "uvw"}
    path = (
        write(tmp_path, [batch("grad_reduced", s, rows) for s in range(2)], steps_per_file=2) / "grad_reduced_0-1.csv"
    )
    _cell(path, 3, column, text)
    found, problems = read(tmp_path, reader)
    assert [[key.name for key in step.batches[0].keys] for step in found] == [["u", "w"], ["u", "v", "w"]]
    assert len(problems.kept) == 1
    assert (problems.kept[0].path, problems.kept[0].line) == (path, 3)
    assert problems.skipped


def test_both_readers_take_the_same_spellings_of_numbers(tmp_path: Path) -> None:
    """Digits from 0 to 9 alone; a whole number as 7.0 too."""
    ends = ("", " ", "\t", "\u00a0", ".", ".0", "e2", "E+2", "f", "_0", "\uff11", "\u0661", "x")
    signs, digits = ("", "+", "-", " "), ("7", "07", "nan", "inf")
    cells = [sign + number + end for sign in signs for number in digits for end in ends]
    directory = write(tmp_path, [])
    header = "vpp_stage,name,step,norm,shape,dtype"
    for signal, row in (("exp_avg", "0,w{n},1,{cell},[1],f"), ("exp_avg_sq", "0,w{n},{cell},1,[1],f")):
        rows = [row.format(n=n, cell=cell) for n, cell in enumerate(["1", *cells])]
        (directory / f"{signal}_0-999.csv").write_text("\n".join([header, *rows, ""]), encoding="utf-8")
    for signal in ("exp_avg", "exp_avg_sq"):
        one, other = (
            {
                cells[int(key.name[1:]) - 1]: (step.step, str(norm))
                for step in read(tmp_path, reader, signals=[signal])[0]
                for key, norm in zip(step.batches[0].keys, step.batches[0].op("norm").tolist(), strict=True)
            }
            for reader in READERS
        )
        assert one == other
        assert one["7.0"] == one["07"] == one["+7"] == one[" 7"]
        assert not {"7\uff11", "7\u0661", "7\u00a0", "7x"} & {*one}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("cell", ["1.5", "7.25e1"])
def test_a_column_of_whole_numbers_with_fractions_is_left_out(tmp_path: Path, reader: Any, cell: str) -> None:
    """With the file; a step is never rounded."""
    path = write(tmp_path, [batch("exp_avg", 1, {Key("w"): np.ones(3)})]) / "exp_avg_1-1.csv"
    _cell(path, 2, "step", cell)
    found, problems = read(tmp_path, reader)
    assert found == []
    assert problems.lines() == [f"{path}: expected whole numbers in column step, got {cell!r}: left out"]


@pytest.mark.parametrize("reader", READERS)
def test_an_empty_cell_is_no_value(tmp_path: Path, reader: Any) -> None:
    """Not NaN: the row is there with its other ops, at its place among all; without any, it is not there."""
    rows = {Key(name): RANDOM.normal(size=3) for name in "uvw"}
    directory = write(tmp_path, [batch("grad_reduced", 0, rows)], ops=("min", "norm"))
    path = directory / "grad_reduced_0-0.csv"
    _cell(path, 3, "norm", "")
    found, problems = read(tmp_path, reader)
    assert problems.lines() == []
    (found_batch,) = found[0].batches
    assert [key.name for key in found_batch.keys] == ["u", "v", "w"]
    assert found_batch.order.tolist() == [0, 1, 2]
    assert found_batch.has("norm").tolist() == [True, False, True]
    assert found_batch.has("min").all()
    wanted = [pytest.approx(rows[Key(name)].min(), rel=5e-6) for name in "uvw"]
    assert found_batch.op("min").tolist() == wanted
    _cell(path, 3, "min", "")
    ((step,), _) = read(tmp_path, reader)
    assert [key.name for each in step.batches for key in each.keys] == ["u", "w"]
    assert step.rows == {"grad_reduced": 3}


@pytest.mark.parametrize("reader", READERS)
def test_what_a_quote_takes_with_it_is_told(tmp_path: Path, reader: Any) -> None:
    """A quote that is not closed takes the lines up to the next one: they are reported; the others are read."""
    rows = {Key(name): RANDOM.normal(size=3) for name in "uv"}
    directory = write(tmp_path, [batch("grad_reduced", s, rows) for s in range(3)], steps_per_file=3)
    path = directory / "grad_reduced_0-2.csv"
    _cell(path, 3, "name", '"v')
    path.write_text(path.read_text(encoding="utf-8").replace('"[3]"', "[3]"), encoding="utf-8")
    _cell(path, 5, "name", '"v"')
    found, problems = read(tmp_path, reader)
    assert [(step.step, [key.name for key in step.batches[0].keys]) for step in found] == [(0, ["u"]), (2, ["u", "v"])]
    (problem,) = problems.kept
    assert (problem.path, problem.line, problem.skipped) == (path, 3, True)
    assert "this line and the next 2 are left out" in problem.what


@pytest.mark.parametrize("reader", READERS)
def test_a_line_of_an_unfinished_file_is_told_where_it_is(tmp_path: Path, reader: Any) -> None:
    """By the file that the user has, not by a copy of it."""
    rows = {Key(name): RANDOM.normal(size=3) for name in "uvw"}
    path = write(tmp_path, [batch("grad_reduced", 0, rows)]) / "grad_reduced_0-0.csv"
    _cell(path, 3, "norm", "much")
    path.write_bytes(path.read_bytes()[:-3])
    _, problems = read(tmp_path, reader)
    assert {(problem.path, problem.line) for problem in problems.kept} == {(path, 3), (path, 4)}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(("column", "text"), [("shape", "[three]"), ("shape", "3"), ("coverage", "x of y")])
def test_text_that_means_nothing_stops_nothing(tmp_path: Path, reader: Any, column: str, text: str) -> None:
    """An invalid shape or coverage leaves the rest as it is."""
    covered = (Coverage((8, 4), "0:16", (0, 1)), None)
    rows = {Key("v"): RANDOM.normal(size=16), Key("w"): RANDOM.normal(size=3)}
    written = batch("grad_reduced", 0, rows, coverage=covered)
    path = write(tmp_path, [written, batch("grad_reduced", 1, rows, coverage=covered)]) / "grad_reduced_0-0.csv"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    cell = (
        lines[1].split(",torch")[0].rsplit(",", 1)[1] if column == "shape" else '"16 of [8, 4] at 0:16 over ranks 0-1"'
    )
    assert cell in lines[1]
    path.write_text(lines[0] + lines[1].replace(cell, text) + lines[2], encoding="utf-8")
    found, problems = read(tmp_path, reader)
    assert [step.step for step in found] == [0, 1]
    assert problems.skipped == (text == "[three]")
    assert found[0].batches[0].keys[-1] == Key("w")
    assert_same(found[1].batches[0], batch("grad_reduced", 1, rows, coverage=covered))


@pytest.mark.parametrize("reader", READERS)
def test_a_name_with_line_breaks_is_read_wherever_it_stands(tmp_path: Path, reader: Any) -> None:
    """Also in a file that is read in pieces."""
    rows = {Key("w"): RANDOM.normal(size=3)}
    path = write(tmp_path, [batch("grad_reduced", 0, rows)], ops=("norm",)) / "grad_reduced_0-0.csv"
    names = [f"w{n}\n{'x' * 40}\n" for n in range(40_000)]
    lines = [f'0,"{name}",0,1.5,[3],float64\n' for name in names]
    path.write_text("vpp_stage,name,step,norm,shape,dtype\n" + "".join(lines), encoding="utf-8")
    ((step,), problems) = read(tmp_path, reader)
    assert [key.name for key in step.batches[0].keys] == names
    assert problems.lines() == []


def test_a_line_behind_names_with_line_breaks_is_told_by_its_number(tmp_path: Path) -> None:
    """Without DuckDB, which counts rows in place of lines."""
    rows = {Key("w"): RANDOM.normal(size=3)}
    path = write(tmp_path, [batch("grad_reduced", 0, rows)], ops=("norm",)) / "grad_reduced_0-0.csv"
    good = [f'0,"w{n}\n{"x" * 40}\n",0,1.5,[3],float64\n' for n in range(40_000)]
    text = "vpp_stage,name,step,norm,shape,dtype\n" + "".join(good) + "0,bad,0,much,[3],float64\n"
    path.write_text(text, encoding="utf-8")
    _, problems = read(tmp_path, PlainRows)
    assert [(problem.path, problem.line) for problem in problems.kept] == [(path, text.count("\n"))]


BROKEN = {
    "empty": (b"", "expected a table; the file is empty", None),
    "a torn header": (b"vpp_stage,name,st", "expected a header; its line is not finished", 1),
    "foreign": (
        b"date,price\n1,2\n",
        "expected a header that begins with vpp_stage,name,step, as the run has written it; there is 'date,price'",
        1,
    ),
    "binary": (bytes(range(128, 256)) * 40 + b"\n", "expected a header that begins with", 1),
    "a column twice": (b"vpp_stage,name,step,norm,norm\n", "expected a header that has every column once", 1),
    "a column twice to SQL": (b"vpp_stage,name,step,Norm,norm\n", "expected a header that has every column once", 1),
    **{
        f"a column called {name!r}": (
            f"vpp_stage,name,step,norm,{name}\n0,w,1,1,1\n".encode(),
            f"expected ops as columns; there is {name.lower()!r}",
            1,
        )
        for name in ("", "filename", "rowid", "Rank", "directory")
    },
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_file_is_left_out(tmp_path: Path, reader: Any, kind: str) -> None:
    """The file is reported with the expected form; the rest is read."""
    content, expected, line = BROKEN[kind]
    directory = write(tmp_path, [batch("grad_reduced", s, {Key("w"): RANDOM.normal(size=3)}) for s in range(3)])
    (directory / "grad_reduced_1-1.csv").write_bytes(content)
    found, problems = read(tmp_path, reader)
    assert [step.step for step in found] == [0, 2]
    (problem,) = problems.kept
    assert (problem.path, problem.line, problem.skipped) == (directory / "grad_reduced_1-1.csv", line, True)
    assert expected in problem.what


@pytest.mark.parametrize("reader", READERS)
def test_a_file_with_a_header_alone_is_empty(tmp_path: Path, reader: Any) -> None:
    """Which is nothing wrong."""
    directory = write(tmp_path, [batch("grad_reduced", s, {Key("w"): RANDOM.normal(size=3)}) for s in range(2)])
    path = directory / "grad_reduced_1-1.csv"
    path.write_text(path.read_text(encoding="utf-8").splitlines(keepends=True)[0], encoding="utf-8")
    found, problems = read(tmp_path, reader)
    assert ([step.step for step in found], problems.lines()) == ([0], [])


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("cut", [1, 5, 30])
def test_an_unfinished_last_line_is_left_out(tmp_path: Path, reader: Any, cut: int) -> None:
    """As a run that is still writing, or was killed, leaves it; the lines before it are read."""
    rows = {Key(name): RANDOM.normal(size=3) for name in "vw"}
    path = write(tmp_path, [batch("grad_reduced", s, rows) for s in (0, 1)], steps_per_file=2) / "grad_reduced_0-1.csv"
    path.write_bytes(path.read_bytes()[:-cut])
    before = path.read_bytes()
    found, problems = read(tmp_path, reader)
    assert [[key.name for key in step.batches[0].keys] for step in found] == [["v", "w"], ["v"]]
    (problem,) = problems.kept
    assert (problem.path, problem.line) == (path, 5)
    assert path.read_bytes() == before


@pytest.mark.parametrize("reader", READERS)
def test_steps_are_read_as_they_are_taken(tmp_path: Path, reader: Any) -> None:
    """One step at a time: a reader that stops early has not read what lies behind."""
    rows = {Key("w"): RANDOM.normal(size=3)}
    directory = write(tmp_path, [batch("grad_reduced", s, rows) for s in range(3)])
    problems = Problems()
    taken = steps(reader([RankDirectory(directory, 0, "", 0.0, Manifest(), 0)], problems), 0)
    assert next(taken).step == 0
    taken.close()


def test_views_hold_every_row(tmp_path: Path) -> None:
    """One view a signal over all ranks and files, with every number that any file has."""
    rows = {Key("w"): np.array([3.0, 4.0])}
    for rank in (0, 1):
        write(tmp_path, [batch("grad_reduced", s, rows) for s in range(3)], rank=rank, ops=("norm", "max")[: 1 + rank])
    problems = Problems()
    with Rows(last_run(tmp_path, problems).directories, problems) as read_rows:
        query = f'SELECT rank, step, name, micro_step, norm, "max" FROM {read_rows.view("grad_reduced")} ORDER BY ALL'
        found = read_rows.connection.execute(query).fetchall()
        assert read_rows.numbers("grad_reduced") == ("norm", "max")
        (few,) = read_rows.connection.execute(
            f"SELECT list(step) FROM {read_rows.between('grad_reduced', 1, 1)}"
        ).fetchall()
    assert found == [(rank, s, "w", 0, 5.0, 4.0 if rank else None) for rank in (0, 1) for s in range(3)]
    assert few == ([1, 1],)


def test_a_query_of_one_op_finds_rows_that_lack_it(tmp_path: Path) -> None:
    """DuckDB takes the columns that must not be empty by their place among those that are read."""
    directory = write(
        tmp_path, [batch("grad_reduced", 0, {Key(name): np.ones(4) for name in "uv"})], ops=("min", "norm")
    )
    _cell(directory / "grad_reduced_0-0.csv", 2, "norm", "")
    problems = Problems()
    with Rows(last_run(tmp_path, problems).directories, problems) as read_rows:
        query = f'SELECT "min", norm FROM {read_rows.view("grad_reduced")}'
        found = read_rows.connection.execute(query).fetchall()
    assert found == [(1.0, None), (1.0, 2.0)]
    assert problems.lines() == []


def test_moments_are_those_that_the_ops_were_derived_from(tmp_path: Path) -> None:
    """So that rules and merging can go on from them: sums and sums of squares."""
    x = RANDOM.normal(3, 2, (5, 4))
    write(tmp_path, [batch("grad_reduced", 0, {Key("w"): x})])
    ((step,), _) = read(tmp_path, Rows)
    columns = step.batches[0].columns
    wanted = {"sum": x.sum(), "sumsq": (x * x).sum(), "m2": ((x - x.mean()) ** 2).sum(), "min": x.min(), "max": x.max()}
    for name, value in wanted.items():
        assert columns[name][0] == pytest.approx(value, rel=2e-5), name
    assert math.isclose(columns["nans"][0], 0)


def test_what_does_not_fit_goes_to_the_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not to where the command is run, and nothing of it stays."""
    (tmp_path / "here").mkdir()
    (tmp_path / "spill").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "spill"))
    connection = connect("32MB", threads=1)
    connection.execute("CREATE TABLE t AS SELECT hash(range) AS a, hash(range + 1) AS b FROM range(2_500_000)")
    assert any((tmp_path / "spill").iterdir())
    connection.close()
    assert not any((tmp_path / "spill").iterdir())
    assert not any((tmp_path / "here").iterdir())


def test_what_is_there_in_both_formats_is_read_once(tmp_path: Path) -> None:
    """Of a run that writes CSV and Parquet; Parquet alone is read as well."""
    batches = [batch("grad_reduced", step, {Key("w"): np.array([3.0, step])}) for step in range(4)]
    directory = write(tmp_path, batches, steps_per_file=2)
    sink = ParquetSink(context(tmp_path, directory=directory, steps_per_file=2))
    sink.open()
    for each in batches:
        sink.write(Snapshot(each.step, 0, 0.0, [each], OPS))
    sink.close()
    for gone in ([], ["grad_reduced_0-1.csv"], ["grad_reduced_2-3.csv"]):
        for name in gone:
            (directory / name).unlink()
        found, problems = read(tmp_path, Rows)
        assert problems.lines() == []
        assert [(step.step, len(step.batches)) for step in found] == [(0, 1), (1, 1), (2, 1), (3, 1)]
        for step, wanted in zip(found, batches, strict=True):
            assert_same(step.batches[0], wanted)
        with Rows(last_run(tmp_path, problems).directories, problems) as rows:
            counted = f"SELECT count(*) FROM {rows.view('grad_reduced')}"
            assert rows.connection.execute(counted).fetchone() == (4,)


@pytest.mark.parametrize(("odd", "like_it"), [("glob[1]", "glob1"), ("star*", "starX"), ("who?", "whom")])
def test_a_directory_may_be_called_as_a_pattern(tmp_path: Path, odd: str, like_it: str) -> None:
    """Files of another directory that fits the pattern are no part of it, in either format."""
    for name, norm in ((odd, 3.0), (like_it, 4.0)):
        for sink, step in ((CsvSink, 0), (ParquetSink, 1)):
            written = batch("grad_reduced", step, {Key("w"): np.array([norm])})
            directory = write(tmp_path / name, [written] if sink is CsvSink else [])
            if sink is ParquetSink:
                parquet = ParquetSink(context(tmp_path, directory=directory))
                parquet.open()
                parquet.write(Snapshot(step, 0, 0.0, [written], OPS))
                parquet.close()
    (tmp_path / odd / "Dec03_21-34-40-rank0-00000000" / "grad_reduced_2-2.csv").write_text(
        "vpp_stage,name,step,norm\n0,w,two,5\n", encoding="utf-8"
    )
    found, problems = read(tmp_path / odd, Rows)
    assert [(step.step, step.batches[0].op("norm").tolist()) for step in found] == [(0, [3.0]), (1, [3.0])]
    assert [(problem.path.parent.parent.name, problem.line) for problem in problems.kept] == [(odd, 2)]
    with Rows(last_run(tmp_path / odd, Problems()).directories, Problems()) as rows:
        query = f"SELECT step, norm FROM {rows.view('grad_reduced')} ORDER BY step"
        assert rows.connection.execute(query).fetchall() == [(0, 3.0), (1, 3.0)]
