"""Rows of other writers with some empty cells: what is found in a run does not depend on the cells of other rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from probe.core.analysis.diagnosis.analyse import Analysis, analyse
from probe.core.analysis.tracked_run import TrackedRun
from probe.core.storage.run_directory import write_manifest
from probe.core.trackers import TrackedRow
from tests.required import require

require("duckdb")

HEADER = "vpp_stage,name,step,norm,min,max,shape,dtype"
Row = tuple[str, int, Any, Any, Any]
"""Name, step, norm, min and max; None for an empty cell."""


def write(root: Path, signals: dict[str, Iterable[Row]], rules: tuple[str, ...] = (), rank: int = 0) -> None:
    directory = root / f"Dec03_21-34-40-rank{rank}-{rank:08x}"
    directory.mkdir(parents=True)
    for signal, rows in signals.items():
        cells = (",".join("" if cell is None else str(cell) for cell in row) for row in rows)
        lines = [HEADER, *(f"0,{text},[4],float32" for text in cells)]
        (directory / f"{signal}_0-99.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    args = {"AnomalyTurbulence": {"threshold": 0.5}, "AnomalyVanish": {"warm_up": 4, "window": 8}}
    chosen = [{"rule_name": rule, "args": args.get(rule, {})} for rule in rules]
    config = {"alert": {"rules": chosen}, "ops": ["norm", "min", "max"]}
    write_manifest(directory, {"rank": rank, "run": 0, "start_time": "2026-11-03T21:34:40+0800", "config": config})


def first(analysis: Analysis) -> tuple[str, str, int]:
    """Rule, name and step of the first cause."""
    assert analysis.diagnosis is not None
    assert analysis.problems.lines() == []
    found = analysis.diagnosis.first
    return found.finding.rule, found.finding.key.name, found.began


def lacking_one(row: Row) -> Row:
    return (*row[:3], None, row[4])


def lacking_two(row: Row) -> Row:
    return (*row[:3], None, None)


def lacking_all(row: Row) -> Row:
    return (*row[:2], None, None, None)


LACKING = (lacking_one, lacking_two, lacking_all)


@pytest.mark.parametrize("lacking", LACKING)
def test_nan_is_found_beside_rows_with_empty_cells(tmp_path: Path, lacking: Callable[[Row], Row]) -> None:
    """An empty cell itself is no finding."""
    rows = [(name, step, 1.0, 0.0, 1.0) for step in range(6) for name in ("a.output", "b.output")]
    cells = [lacking(row) if row[0] == "b.output" else row for row in rows]
    cells = [(*row[:2], "nan", *row[3:]) if row[:2] == ("a.output", 3) else row for row in cells]
    write(tmp_path, {"actv": cells})
    analysis = analyse(tmp_path)
    assert first(analysis) == ("AnomalyNan", "a", 3)
    assert analysis.number == 1


@pytest.mark.parametrize("lacking", LACKING)
def test_a_last_step_with_all_rows_is_whole(tmp_path: Path, lacking: Callable[[Row], Row]) -> None:
    """Empty cells of another row do not make the end of the run the cause."""
    rows = [
        (f"{name}.output", step, 1e7 if (step, name) == (39, "c") else 1 + 0.01 * ((7 * step + ord(name)) % 5), 0, 1)
        for step in range(40)
        for name in "abcdef"
    ]
    write(tmp_path, {"actv": [lacking(row) if row[:2] == ("a.output", 39) else row for row in rows]}, TURBULENCE)
    analysis = analyse(tmp_path)
    assert first(analysis) == ("AnomalyTurbulence", "c", 39)
    assert not analysis.judged[0].partial


TURBULENCE = ("AnomalyTurbulence",)


def parameters(step: int, moved: float) -> list[Row]:
    """Ten parameters, of which ``w3`` stands still."""
    sizes = [1 + 0.1 * n + (0 if n == 3 else 0.01 * step + moved) for n in range(10)]
    return [(f"w{n}", step, size, size, size) for n, size in enumerate(sizes)]


@pytest.mark.parametrize("lacking", LACKING)
@pytest.mark.parametrize("signal", ["param_origin", "param_updated", "grad_reduced"])
def test_a_frozen_parameter_is_found_whatever_cells_others_lack(
    tmp_path: Path, signal: str, lacking: Callable[[Row], Row]
) -> None:
    """All parameters of a step are judged together, those of which a cell is empty too."""
    gradients = [(f"w{n}", step, 1 + 0.001 * (step % 3), 0.5, 1) for step in range(12) for n in range(10)]
    signals = {
        "param_origin": [row for step in range(12) for row in parameters(step, 0.0)],
        "param_updated": [row for step in range(12) for row in parameters(step, 0.01)],
        "grad_reduced": gradients,
    }
    signals[signal] = [lacking(row) if row[0] == "w9" else row for row in signals[signal]]
    write(tmp_path, signals, ("AnomalyFrozen",))
    assert first(analyse(tmp_path)) == ("AnomalyFrozen", "w3", 0)


@pytest.mark.parametrize("signal", ["param_origin", "param_updated"])
def test_a_frozen_parameter_that_lacks_an_extreme_is_found(tmp_path: Path, signal: str) -> None:
    """By the numbers that it has before and after the update."""
    signals = {
        "param_origin": [row for step in range(12) for row in parameters(step, 0.0)],
        "param_updated": [row for step in range(12) for row in parameters(step, 0.01)],
        "grad_reduced": [(f"w{n}", step, 1.0, 0.5, 1) for step in range(12) for n in range(10)],
    }
    signals[signal] = [lacking_one(row) if row[0] == "w3" else row for row in signals[signal]]
    write(tmp_path, signals, ("AnomalyFrozen",))
    assert first(analyse(tmp_path)) == ("AnomalyFrozen", "w3", 0)


def test_a_vanished_gradient_that_lacks_an_extreme_is_found(tmp_path: Path) -> None:
    """It is compared with all gradients of its signal."""
    rows = [
        (f"w{n}", step, 1e-9 if n == 3 and step >= 10 else 1 + 0.01 * ((step + n) % 3), 0.5, 1)
        for step in range(30)
        for n in range(6)
    ]
    write(tmp_path, {"grad_reduced": [lacking_one(row) if row[0] == "w3" else row for row in rows]}, ("AnomalyVanish",))
    assert first(analyse(tmp_path))[:2] == ("AnomalyVanish", "w3")


class Rows:
    """Tracker that keeps rows."""

    def __init__(self) -> None:
        self.rows: list[TrackedRow] = []

    def log(self, rows: list[TrackedRow]) -> None:
        self.rows += rows

    def alert(self, notice: Any) -> None:
        raise AssertionError(notice)


def test_an_empty_cell_is_no_nan_in_a_tracker(tmp_path: Path) -> None:
    """The layers that have an op are tracked, of whichever rank."""
    whole = [(name, 0, size, 0.0, 1.0) for name, size in (("a", 1.0), ("b", 3.0))]
    write(tmp_path, {"grad_reduced": whole})
    write(tmp_path, {"grad_reduced": [(*whole[0][:2], None, *whole[0][3:]), whole[1]]}, rank=1)
    tracked = Rows()
    TrackedRun(tmp_path, 100, []).send(tracked, whole=True)  # type: ignore[arg-type] # it has what is called
    (row,) = tracked.rows
    assert row.values["probe/grad_reduced/nan_layers"] == 0
    assert row.values["probe/grad_reduced/a/norm"] == 1.0
    assert row.values["probe/grad_reduced/b/norm"] == 3.0


def test_an_empty_cell_is_no_difference_between_replicas(tmp_path: Path) -> None:
    """The rank whose number differs is named, by the numbers that others have."""
    for rank in range(4):
        norms = [9.0 + step if (rank, step) == (2, 7) else 1.0 + step for step in range(9)]
        rows = [("w", step, norm, None if rank == 1 else 0.0, 1.0) for step, norm in enumerate(norms)]
        rows += [("v", step, None if rank == 1 else norm, 0.0, 1.0) for step, norm in enumerate(norms)]
        write(tmp_path, {"param_origin": rows}, rank=rank)
    found = [located.finding for located, _ in analyse(tmp_path).findings() if located.finding.rule == "AnomalyReplica"]
    assert {(finding.key.name, finding.rank, finding.step, finding.op) for finding in found} == {
        ("w", 2, 7, "norm"),
        ("v", 2, 7, "norm"),
    }
