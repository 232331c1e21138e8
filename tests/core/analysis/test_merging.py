"""Whole tensors from the moments and files of their parts, against NumPy on the whole."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from probe.cli import app
from probe.core.analysis.merge import merge_directory
from probe.core.backend.numpy_moments import moments
from probe.core.moments import MOMENTS, columns_for, derive, merge_columns
from probe.core.output.sinks.context import SinkContext
from probe.core.output.sinks.csv import CsvSink
from probe.core.output.sinks.parquet import ParquetSink
from probe.core.output.sinks.sqlite import SqliteSink
from probe.core.records import Batch, Coverage, Key, Snapshot
from probe.core.storage.layout import ranks_text
from probe.core.storage.run_directory import write_manifest

OPS = ("min", "max", "mean", "norm", "zeros", "nans", "infs", "std")
COLUMNS = columns_for(OPS)
EPS = 1e-8


def rows_of(arrays: list[Any]) -> dict[str, Any]:
    """The moments of ``arrays``."""
    block = np.array([moments([a], COLUMNS, EPS)[0] if a.size else [np.nan, np.nan, *[0.0] * 6] for a in arrays])
    return {name: block[:, i] for i, name in enumerate(COLUMNS)}


def by_numpy(x: Any) -> dict[str, float]:
    with np.errstate(invalid="ignore"):
        return {
            "min": x.min(),
            "max": x.max(),
            "mean": x.mean(),
            "norm": np.linalg.norm(x),
            "zeros": (np.abs(x) < EPS).mean(),
            "nans": np.isnan(x).sum(),
            "infs": np.isinf(x).sum(),
            "std": x.std(),
        }


def parts_of(x: Any, *cuts: int) -> list[Any]:
    return np.split(x.reshape(-1), cuts)


TENSORS = {
    "uneven": (np.random.default_rng(1).normal(3, 0.1, (7, 5)), (4, 30)),
    "an empty part": (np.random.default_rng(2).normal(size=12), (0, 5)),
    "zeros": (np.array([0.0, 1, 0, 0, 5, 1e-9]), (1, 3)),
    "NaN in one part": (np.array([1.0, np.nan, 2, 3]), (2, 3)),
    "infinities": (np.array([np.inf, 1.0, -np.inf, 2]), (1, 3)),
    "tiny": (np.array([1e-25, 3e-25, -2e-25]), (1, 2)),
    "all alike": (np.full(9, 7.25), (2, 4)),
}


@pytest.mark.parametrize("name", TENSORS)
def test_merged_columns_are_those_of_the_whole(name: str) -> None:
    whole, cuts = TENSORS[name]
    other = np.arange(4.0)
    parts = [*parts_of(whole, *cuts), *parts_of(other, 1)]
    wholes = np.array([0] * (len(cuts) + 1) + [1, 1])
    merged = merge_columns(rows_of(parts), np.array([float(p.size) for p in parts]), wholes, 2)
    for i, x in enumerate((whole, other)):
        for op, wanted in by_numpy(x).items():
            got = derive(op, merged, [whole.shape, other.shape])[i]
            np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-12 if op == "std" else 0, err_msg=op)


def test_what_has_no_parts_is_empty() -> None:
    merged = merge_columns(rows_of([np.array([1.0])]), np.array([1.0]), np.array([1]), 2)
    assert np.isnan(merged["min"][0])
    assert merged["sum"][0] == 0
    assert set(merged) == set(COLUMNS) <= set(MOMENTS)


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ((0, 1, 2, 3), "0-3"),
        ((0, 2, 4), "0-4:2"),
        ((1,), "1"),
        ((0, 1, 5), "0,1,5"),
        ((3, 9), "3-9:6"),
        ((), ""),
    ],
)
def test_ranks_are_told_in_short(ranks: tuple[int, ...], text: str) -> None:
    assert ranks_text(ranks) == text


WHOLE = np.random.default_rng(3).normal(1, 2, (6, 4))
LARGE = np.random.default_rng(4).normal(1, 2, (3, 5))


def write(
    root: Path, rank: int, signal: str, rows: dict[str, tuple[Any, Coverage | None]], step: int = 0, **about: Any
) -> None:
    """As a rank that is monitored does."""
    run, hour = about.get("run", 0), about.pop("hour", 21)
    directory = root / f"Dec03_{hour}-34-40-rank{rank}-{run}000000{rank}"
    directory.mkdir(parents=True, exist_ok=True)
    start = f"2025-12-03T{hour}:34:40+0800"
    write_manifest(directory, {"rank": rank, "pp_stage": 0, "start_time": start, **about})
    sink = CsvSink(SinkContext(directory, root, rank))
    sink.open()
    sink.write(Snapshot(step, rank, 0.0, [batch_of(signal, rows, step)], OPS))


def batch_of(signal: str, rows: dict[str, tuple[Any, Coverage | None]], step: int) -> Batch:
    """The moments of tensors, or of their parts."""
    arrays = [array for array, _ in rows.values()]
    return Batch(
        signal=signal,
        step=step,
        keys=tuple(Key(name) for name in rows),
        shapes=tuple(array.shape for array in arrays),
        dtypes=("float64",) * len(rows),
        order=np.arange(len(rows)),
        columns=rows_of(arrays),
        coverage=tuple(coverage for _, coverage in rows.values()) if any(c for _, c in rows.values()) else (),
    )


def merged(root: Path, name: str) -> list[dict[str, str]]:
    with (root / "merged" / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, strict=True))


def shard(whole: Any, first: int, last: int, ranks: tuple[int, ...], term: bool = False) -> tuple[Any, Coverage]:
    return whole.reshape(-1)[first:last], Coverage(whole.shape, f"{first}:{last}", ranks, term)


def assert_whole(row: dict[str, str], whole: Any) -> None:
    for op, wanted in by_numpy(whole).items():
        np.testing.assert_allclose(float(row[op]), wanted, rtol=2e-5, atol=1e-9, err_msg=op)
    assert json.loads(row["shape"]) == list(whole.shape)
    assert row["complete"] == "1"


def test_parts_become_a_whole(tmp_path: Path) -> None:
    write(tmp_path, 0, "grad_reduced", {"w": shard(WHOLE, 0, 10, (0, 1)), "b": (LARGE, None)})
    write(tmp_path, 1, "grad_reduced", {"w": shard(WHOLE, 10, 24, (0, 1)), "b": (LARGE, None)})
    report = merge_directory(tmp_path, tmp_path / "merged")
    first, second = merged(tmp_path, "grad_reduced_0-0.csv")
    assert_whole(first, WHOLE)
    assert_whole(second, LARGE)
    assert [first["ranks"], second["ranks"]] == ["0-1", "0"]
    assert (report.rows, report.incomplete, report.differing, report.problems) == (2, 0, [], [])


def test_numbers_of_the_run_are_no_tensors(tmp_path: Path) -> None:
    """They are left out, and are no problem."""
    write(tmp_path, 0, "grad_reduced", {"w": (WHOLE, None)})
    (folder,) = tmp_path.glob("*rank0*")
    (folder / "run_0-99.csv").write_text("vpp_stage,name,step,value,shape,dtype\n0,loss,0,1.5,[],float64\n")
    report = merge_directory(tmp_path, tmp_path / "merged")
    assert ([path.name for path in report.files], report.problems) == (["grad_reduced_0-0.csv"], [])


def test_replicas_are_not_added_twice(tmp_path: Path) -> None:
    for rank, ranks in enumerate([(0, 1), (0, 1), (2, 3), (2, 3)]):
        first, last = ((0, 10), (10, 24))[rank % 2]
        write(tmp_path, rank, "exp_avg", {"w": shard(WHOLE, first, last, ranks)})
    report = merge_directory(tmp_path, tmp_path / "merged")
    (row,) = merged(tmp_path, "exp_avg_0-0.csv")
    assert_whole(row, WHOLE)
    assert report.differing == []


def test_replicas_that_differ_are_told(tmp_path: Path) -> None:
    for rank, value in enumerate((WHOLE, WHOLE + 0.5)):
        write(tmp_path, rank, "param_origin", {"w": (value, None)})
    report = merge_directory(tmp_path, tmp_path / "merged")
    assert report.differing == ["param_origin 0 w 0  : ranks 0 and 1"]
    assert [row["ranks"] for row in merged(tmp_path, "param_origin_0-0.csv")] == ["0", "1"]
    assert run(str(tmp_path)).exit_code == 1


def test_each_ranks_own_rows_are_left_out_unless_ranks_share_them(tmp_path: Path) -> None:
    """Two data-parallel replicas, each of two tensor-parallel ranks: unreduced gradients differ between them."""
    for rank, ranks in enumerate([(0, 1), (0, 1), (2, 3), (2, 3)]):
        value = WHOLE * (1 + rank // 2)
        first, last = ((0, 10), (10, 24))[rank % 2]
        rows = {"w": shard(value, first, last, ranks), "b": (LARGE * rank, None)}
        write(tmp_path, rank, "grad_unreduced", rows)
    merge_directory(tmp_path, tmp_path / "merged")
    one, other = merged(tmp_path, "grad_unreduced_0-0.csv")
    assert_whole(one, WHOLE)
    assert_whole(other, WHOLE * 2)
    assert [one["ranks"], other["ranks"]] == ["0-1", "2-3"]


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    write(tmp_path, 0, "grad_reduced", {"w": shard(WHOLE, 0, 10, (0, 1)), "t": shard(LARGE, 0, 15, (0, 1), True)})
    write(tmp_path, 1, "grad_reduced", {"t": shard(LARGE, 0, 15, (0, 1), True)})
    report = merge_directory(tmp_path, tmp_path / "merged")
    assert [row["complete"] for row in merged(tmp_path, "grad_reduced_0-0.csv")] == ["0", "0"]
    assert report.incomplete == 2


def test_a_file_that_cannot_be_read_is_told_and_the_rest_merged(tmp_path: Path) -> None:
    write(tmp_path, 0, "grad_reduced", {"w": (WHOLE, None)})
    write(tmp_path, 1, "grad_reduced", {"w": (WHOLE, None)})
    broken = next(tmp_path.glob("*rank1*")) / "grad_reduced_0-0.csv"
    broken.write_text("vpp_stage,name,step,norm,dtype\n0,w,0,1,Float32\n", encoding="utf-8")
    report = merge_directory(tmp_path, tmp_path / "merged")
    assert_whole(merged(tmp_path, "grad_reduced_0-0.csv")[0], WHOLE)
    (problem,) = report.problems
    assert problem.startswith(f"{broken}:1: expected the columns name, step, shape, dtype; there is no shape: ")


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (",0,", "", "expected 13 cells, got 11"),
        (",0,", ",,", "expected a number in column step, got ''"),
        (",0,", ",0,much,", "expected 13 cells, got 14"),
    ],
)
def test_a_line_that_cannot_be_read_is_told_and_the_others_merged(
    tmp_path: Path, before: str, after: str, told: str
) -> None:
    """With what was expected."""
    write(tmp_path, 0, "grad_reduced", {"w": (WHOLE, None), "v": (WHOLE, None), "b": (LARGE, None)})
    path = next(tmp_path.glob("*/grad_reduced_0-0.csv"))
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join([*lines[:2], lines[2].replace(before, after, 1), lines[3]]), encoding="utf-8")
    report = merge_directory(tmp_path, tmp_path / "merged")
    assert [row["name"] for row in merged(tmp_path, "grad_reduced_0-0.csv")] == ["w", "b"]
    assert report.problems == [f"{path}:3: {told}: this line is left out"]


def set_cell(path: Path, row: int, **cells: str) -> None:
    """Set cells of a row of a CSV file; the first is 0."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    rows[row] |= cells
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


NO_NUMBER = f"expected a number in one of the columns {', '.join(OPS)}, got none"


@pytest.mark.parametrize(
    ("cells", "told"),
    [
        ({"shape": "six"}, "expected sizes such as [3, 2] in column shape, got 'six'"),
        (dict.fromkeys(OPS, ""), NO_NUMBER),
    ],
)
def test_a_row_that_means_nothing_is_named_and_the_others_merged(
    tmp_path: Path, cells: dict[str, str], told: str
) -> None:
    """A shape that is none; no number at all."""
    write(tmp_path, 0, "grad_reduced", {"w": (WHOLE, None), "v": (WHOLE, None)})
    path = next(tmp_path.glob("*/grad_reduced_0-0.csv"))
    set_cell(path, 1, **cells)
    report = merge_directory(tmp_path, tmp_path / "merged")
    assert [row["name"] for row in merged(tmp_path, "grad_reduced_0-0.csv")] == ["w"]
    assert report.problems == [f"{path}: {told}: rows such as 0 v 0 are left out"]


def test_an_op_that_one_row_lacks_is_kept_in_the_others(tmp_path: Path) -> None:
    """Of a whole tensor the copy with more ops is taken; of parts those ops are left that all have, and it is said."""
    for rank, (first, last) in enumerate(((0, 10), (10, 24))):
        rows = {"w": shard(WHOLE, first, last, (0, 1)), "v": (WHOLE, None), "u": shard(WHOLE, first, last, (0, 1))}
        write(tmp_path, rank, "grad_reduced", rows)
    path = next(tmp_path.glob("*rank0*/grad_reduced_0-0.csv"))
    set_cell(path, 1, min="", max="")
    set_cell(path, 2, max="")
    report = merge_directory(tmp_path, tmp_path / "merged")
    parts, whole, lacking = merged(tmp_path, "grad_reduced_0-0.csv")
    assert_whole(parts, WHOLE)
    assert_whole(whole, WHOLE)
    assert lacking["max"] == ""
    assert_whole(lacking | {"max": str(WHOLE.max())}, WHOLE)
    assert (report.incomplete, report.differing) == (0, [])
    assert report.problems == ["grad_reduced: 1 tensor lacks max: not all ranks that hold parts have it"]


SINKS_OF = {"csv": CsvSink, "parquet": ParquetSink, "sqlite": SqliteSink}


@pytest.mark.parametrize("kinds", [("parquet", "parquet"), ("sqlite", "sqlite"), ("csv", "parquet"), ("csv", "sqlite")])
def test_parts_become_a_whole_in_whichever_format_ranks_have_written(tmp_path: Path, kinds: tuple[str, str]) -> None:
    """The ranks may have divided their steps in another way, too."""
    for rank, (first, last) in enumerate(((0, 10), (10, 24))):
        tensors = [{"w": shard(WHOLE + step, first, last, (0, 1)), "b": (LARGE + step, None)} for step in range(4)]
        directory = tmp_path / f"Dec03_21-34-40-rank{rank}-0000000{rank}"
        directory.mkdir()
        write_manifest(directory, {"rank": rank, "pp_stage": 0, "start_time": "2025-12-03T21:34:40+0800"})
        sink = SINKS_OF[kinds[rank]](SinkContext(directory, tmp_path, rank, steps_per_file=rank + 1))
        sink.open()
        for step, rows in enumerate(tensors):
            sink.write(Snapshot(step, rank, 0.0, [batch_of("grad_reduced", rows, step)], OPS))
        sink.close()
    report = merge_directory(tmp_path, tmp_path / "merged")
    assert (report.rows, report.incomplete, report.differing, report.problems) == (8, 0, [], [])
    rows = [row for path in report.files for row in merged(tmp_path, path.name)]
    found = {(row["name"], int(row["step"])): row for row in rows}
    assert len(rows) == len(found) == 8
    for step in range(4):
        assert_whole(found["w", step], WHOLE + step)
        assert_whole(found["b", step], LARGE + step)


def test_a_run_in_another_format_is_refused(tmp_path: Path) -> None:
    """With the format that its manifest names."""
    directory = tmp_path / "Dec03_21-34-40-rank0-00000000"
    directory.mkdir()
    write_manifest(directory, {"rank": 0, "start_time": "2025-12-03T21:34:40+0800", "config": {"format": "wandb"}})
    done = run(str(tmp_path))
    assert done.exit_code == 2
    assert "format wandb; rows are in csv, parquet and sqlite" in " ".join(done.output.split())


def test_only_the_latest_run_is_merged(tmp_path: Path) -> None:
    """An earlier one in the same place, of another length, and another monitor of the same processes."""
    old, other = WHOLE * 100, WHOLE * 1000
    for rank, (first, last) in enumerate(((0, 10), (10, 24))):
        for step in (0, 1):
            write(tmp_path, rank, "grad_reduced", {"w": shard(old, first, last, (0, 1))}, step, hour=12)
        write(tmp_path, rank, "grad_reduced", {"w": shard(other, first, last, (0, 1))}, run=0)
        write(tmp_path, rank, "grad_reduced", {"w": shard(WHOLE, first, last, (0, 1))}, run=1)
    report = merge_directory(tmp_path, tmp_path / "merged")
    (row,) = merged(tmp_path, "grad_reduced_0-0.csv")
    assert_whole(row, WHOLE)
    assert [path.name for path in report.files] == ["grad_reduced_0-0.csv"]
    assert len(report.problems) == 2
    assert all("of an earlier run (of 2 ranks), left out; give each" in problem for problem in report.problems)


def test_stages_that_count_their_layers_alike_stay_apart(tmp_path: Path) -> None:
    """Megatron numbers the layers of each stage from 0; the manifest knows its pipelines."""
    for rank in range(4):
        value, ranks = (WHOLE, (0, 1)) if rank < 2 else (WHOLE * 3, (2, 3))
        first, last = ((0, 10), (10, 24))[rank % 2]
        groups = {"pipeline_parallel": [rank % 2, rank % 2 + 2]}
        write(tmp_path, rank, "grad_reduced", {"layers.0.w": shard(value, first, last, ranks)}, groups=groups)
    report = merge_directory(tmp_path, tmp_path / "merged")
    one, other = merged(tmp_path, "grad_reduced_0-0.csv")
    assert_whole(one, WHOLE)
    assert_whole(other, WHOLE * 3)
    assert [one["pp_stage"], other["pp_stage"]] == ["0", "1"]
    assert report.differing == []


def test_a_directory_without_runs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected directories such as"):
        merge_directory(tmp_path, tmp_path / "merged")


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["merge", *arguments])


def test_the_command_says_what_came_of_it(tmp_path: Path) -> None:
    """Exit codes: 0 all merged, 1 something is missing, 2 wrong use."""
    write(tmp_path, 0, "grad_reduced", {"w": shard(WHOLE, 0, 10, (0, 1))})
    missing = run(str(tmp_path))
    assert missing.exit_code == 1
    assert "1 row is incomplete" in missing.output
    write(tmp_path, 1, "grad_reduced", {"w": shard(WHOLE, 10, 24, (0, 1))})
    complete = run(str(tmp_path), "-o", str(tmp_path / "elsewhere"))
    assert (complete.exit_code, "incomplete" in complete.output) == (0, False)
    assert (tmp_path / "elsewhere" / "grad_reduced_0-0.csv").exists()
    nothing = run(str(tmp_path / "elsewhere"))
    assert nothing.exit_code == 2
    assert "expected directories such as" in nothing.output


def test_a_file_in_place_of_the_folder_is_wrong_use(tmp_path: Path) -> None:
    """The command says so, with exit code 2."""
    write(tmp_path, 0, "grad_reduced", {"w": (WHOLE, None)})
    (tmp_path / "taken").write_text("mine", encoding="utf-8")
    done = run(str(tmp_path), "-o", str(tmp_path / "taken"))
    assert done.exit_code == 2
    assert "taken: expected a folder that can be written to" in done.output
