"""Cells of a report, against a plain loop over the files' rows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe.core.analysis.pictures import layout as planning
from probe.core.analysis.pictures.cells import CellArrays, Places
from probe.core.analysis.pictures.layout import ReportPlan, plan
from probe.core.analysis.pictures.rank_table import rank_table
from probe.core.analysis.pictures.run_cells import CellWork, RowCells, RunSource
from probe.core.storage.directories import last_run
from probe.core.storage.duckdb_reader import Rows
from probe.core.storage.problems import Problems
from tests.core.analysis.report_data import varied, write_run, written_rows
from tests.required import require

pytestmark = pytest.mark.slow

require("duckdb")

NAMES = [f"layers.{n}.{part}" for n in range(4) for part in ("attn.weight", "mlp.weight", "mlp.bias")]


def faulty(step: int, rank: int, micro_step: int, row: int) -> float:
    """Some of everything; nothing but NaN at step 11."""
    if step == 11:
        return math.nan
    special = {0: math.nan, 1: math.inf, 2: -math.inf, 3: 0.0}
    n = (step * 7 + rank * 3 + micro_step * 5 + row) % 29
    return special[n] if n in special else varied(step, rank, micro_step, row)


def all_cells(root: Path) -> tuple[ReportPlan, dict[str, RowCells], dict[str, Any]]:
    """The plan of the run in ``root``, and of each signal the cells, and those of the ranks."""
    problems = Problems()
    run = last_run(root, problems)
    with Rows(run.directories, problems) as rows:
        table = rank_table(run)
        source = RunSource(rows, table)
        chosen = plan(source.survey()[0], len(run.ranks))
        of_signals = dict(source.cells(CellWork(chosen, table)))
        maps = {signal.signal: cells.heat for signal, cells in of_signals.items()}
        side_by_side = {signal.signal: cells.ranks for signal, cells in of_signals.items()}
    assert problems.lines() == []
    return chosen, maps, side_by_side


def cell_of(chosen: ReportPlan, signal: str, row: dict[str, str]) -> tuple[int, int, int]:
    """The row, column and member that a row of a file belongs to."""
    members = next(one.members for one in chosen.signals if one.signal == signal)
    place = [(n, m) for n, own in enumerate(members) for m, member in enumerate(own) if member.name == row["name"]]
    assert len(place) == 1
    column = max(n for n, start in enumerate(chosen.columns.starts) if start <= int(row["step"]))
    return place[0][0], column, place[0][1]


def weight(text: str) -> float:
    """What stands for a cell comes last: the largest, then Inf, then NaN."""
    number = float(text)
    return {True: 1e308, False: abs(number)}[math.isinf(number)] if not math.isnan(number) else math.inf


@pytest.mark.parametrize(("columns", "rows"), [(400, 600), (7, 600), (7, 4), (400, 2)])
def test_a_cell_holds_what_a_loop_over_all_rows_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: int, rows: int
) -> None:
    """Value, its place, the smallest magnitude and the number of NaN and Inf are those of the rows, for all sizes."""
    directories = write_run(tmp_path, ranks=3, steps=range(3, 43, 2), names=NAMES, value=faulty)
    monkeypatch.setattr(planning, "MOST_COLUMNS", columns)
    monkeypatch.setattr(planning, "FEWEST_COLUMNS", 1)
    monkeypatch.setattr(planning, "MOST_ROWS", rows)
    monkeypatch.setattr(planning, "ENOUGH_COLUMNS", 1)
    chosen, maps, _ = all_cells(tmp_path)
    assert len(chosen.columns.starts) <= columns
    assert all(len(signal.labels) <= rows for signal in chosen.signals)
    for signal in ("actv", "grad_reduced"):
        grouped: dict[tuple[int, int], list[dict[str, str]]] = {}
        for row in written_rows(directories, signal):
            n, column, member = cell_of(chosen, signal, row)
            grouped.setdefault((n, column), []).append({**row, "member": str(member)})
        for op, cells in maps[signal].cells.items():
            for (n, column), found in grouped.items():
                expect_cell(cells, maps[signal].places, n, column, found, op)
            assert (~cells.is_missing()).sum() == len(grouped)


def expect_cell(cells: CellArrays, packing: Places, n: int, column: int, found: list[dict[str, str]], op: str) -> None:
    largest = max(weight(row[op]) for row in found)
    places = packing.of(cells)
    where = [
        row
        for row in found
        if (int(row["step"]), int(row["directory"]), int(row.get("micro_step", 0)), int(row["member"]))
        == tuple(int(array[n, column]) for array in places)
    ]
    assert len(where) == 1
    value = float(where[0][op])
    np.testing.assert_equal(cells.shown()[n, column], value)
    assert weight(where[0][op]) == largest
    finite = [abs(float(row[op])) for row in found if math.isfinite(float(row[op]))]
    np.testing.assert_equal(cells["least"][n, column], min(finite, default=math.nan))
    numbers = [float(row[op]) for row in found if not math.isnan(float(row[op]))]
    np.testing.assert_equal(cells["minimum"][n, column], min(numbers, default=math.nan))
    np.testing.assert_equal(cells["maximum"][n, column], max(numbers, default=math.nan))
    assert cells["nan"][n, column] == sum(math.isnan(float(row[op])) for row in found)
    assert cells["inf"][n, column] == sum(math.isinf(float(row[op])) for row in found)
    if not math.isfinite(value):
        assert int(where[0]["step"]) == min(int(row["step"]) for row in found if weight(row[op]) == largest)


def test_ranks_side_by_side_hold_the_largest_of_each_rank(tmp_path: Path) -> None:
    """Each line has what its rank wrote, over micro steps; NaN before Inf before every number."""
    directories = write_run(tmp_path, ranks=4, steps=range(9), names=NAMES[:3], value=faulty)
    chosen, _, side_by_side = all_cells(tmp_path)
    cells = side_by_side["actv"]
    assert cells.rows == 2
    grouped: dict[tuple[int, int, int], list[str]] = {}
    for row in written_rows(directories, "actv"):
        n, column, _ = cell_of(chosen, "actv", row)
        grouped.setdefault((n, int(row["directory"]), column), []).append(row["max"])
    assert len(grouped) == 2 * 4 * 9
    for (n, *where), found in grouped.items():
        own = cells.row_cells(n)["max"]
        assert not own.is_missing()[tuple(where)]
        assert weight(str(own.shown()[tuple(where)])) == max(map(weight, found))


def test_what_was_not_written_is_missing_and_not_zero(tmp_path: Path) -> None:
    """A cell without any row is none, and a rank that has no such step neither."""
    write_run(tmp_path, ranks=2, steps=[0, 1, 2], names=["a.weight"])
    for path in tmp_path.glob("*rank0*/grad_reduced_0-1.csv"):
        path.write_text("".join(line for line in path.open() if ",1," not in line))
    for path in tmp_path.glob("*rank1*/grad_reduced_0-1.csv"):
        path.unlink()
    _, maps, side_by_side = all_cells(tmp_path)
    np.testing.assert_equal(maps["grad_reduced"].cells["max"].is_missing(), [[False, True, False]])
    missing = side_by_side["grad_reduced"].row_cells(0)["max"].is_missing()
    np.testing.assert_equal(missing, [[False, True, False], [True, True, False]])


def test_any_column_of_numbers_is_an_op(tmp_path: Path) -> None:
    """Columns that a signal adds are shown too, also those with names that the queries use."""
    (directory,) = write_run(tmp_path, ranks=1, steps=[0])
    names = ("count", "bytes", "member", "row", "line", "pp_stage", "v", "start")
    cells = ",".join(str(n + 1) for n in range(len(names)))
    (directory / "other_0-1.csv").write_text(
        f"vpp_stage,name,step,{','.join(names)},shape,dtype\n0,a.pre,0,{cells},[1],x\n"
    )
    _, maps, _ = all_cells(tmp_path)
    assert {op: own.shown().tolist() for op, own in maps["other"].cells.items()} == {
        name: [[n + 1]] for n, name in enumerate(names)
    }


def test_a_signal_without_numbers_is_left_out(tmp_path: Path) -> None:
    """Files with names only have nothing to show."""
    (directory,) = write_run(tmp_path, ranks=1, steps=[0])
    (directory / "exp_avg_0-1.csv").write_text("vpp_stage,name,step,shape,dtype\n0,a,0,[1],x\n")
    chosen, _, _ = all_cells(tmp_path)
    assert [signal.signal for signal in chosen.signals] == ["actv", "grad_reduced"]


def test_rows_stand_in_the_order_of_the_model(tmp_path: Path) -> None:
    """Names keep the order in which the files have them, pipeline stages one after the other."""
    write_run(tmp_path, ranks=2, stages=2, names=["z.weight", "b.weight", "k.weight"])
    chosen, maps, _ = all_cells(tmp_path)
    labels = next(signal.labels for signal in chosen.signals if signal.signal == "grad_reduced")
    assert labels == tuple(f"pp{stage}:{name}.weight" for stage in (0, 1) for name in "zbk")
    heat = maps["grad_reduced"]
    directories = heat.places.of(heat.cells["max"]).directory
    assert (directories[:3] == 0).all()
    assert (directories[3:] == 1).all()


def test_a_backward_signal_is_turned_round(tmp_path: Path) -> None:
    """Gradients are written from the last layer to the first, and shown from the first to the last."""
    (directory,) = write_run(tmp_path, ranks=1, names=["z.weight", "b.weight", "k.weight"], steps_per_file=100)
    path = next(directory.glob("grad_reduced_*.csv"))
    path.rename(directory / "grad_unreduced_0-99.csv")
    for other in directory.glob("actv_*.csv"):
        other.unlink()
    chosen, _, _ = all_cells(tmp_path)
    assert chosen.signals[0].labels == ("k.weight", "b.weight", "z.weight")
