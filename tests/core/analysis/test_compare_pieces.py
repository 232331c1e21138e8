"""Comparisons in pieces: the same bytes for any number of pieces, in any order, in any process."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from probe.cli import app
from probe.core.analysis.compare.compare import compare
from probe.core.analysis.compare.explain import as_json
from probe.core.analysis.compare.pairing import Options
from tests.core.analysis import test_compare
from tests.core.analysis.compare_data import Array, Where, rounding, write_run
from tests.core.analysis.cut_engine import CutEngine
from tests.required import require

pytestmark = pytest.mark.slow

duckdb = require("duckdb")

ACROSS_ROWS = (
    "the_first_rows_do_not_depend_on_how_many_are_asked_for",
    "noise_beside_large_rows_is_no_difference",
    "state_before_the_first_update_may_be_missing",
    "steps_of_one_run_are_told_as_ranges",
    "steps_may_be_numbered_otherwise",
    "ranks_are_paired",
    "values_of_few_decimals_are_compared_to_those",
    "merged_files_are_a_run_of_one_rank",
    "a_signal_of_each_micro_step_is_not_one_of_the_step",
)
"""Tests of comparisons whose answer comes of several rows, steps, ranks or files, which pieces part: what a single pair
of rows gives is the same wherever it is compared, and order, growth and rows of one run alone are in the runs of
:func:`runs`."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``a``, and runs that differ from it: in columns; in formats, by lines that cannot be read and rows that come
    twice; and by a resume."""
    root = tmp_path_factory.mktemp("runs")
    about = {"ranks": range(3), "steps": range(6), "ops": ("max", "mean", "norm")}
    write_run(root / "a", steps_per_file=2, **about)  # type: ignore[arg-type]
    write_run(root / "differs", _growing, steps_per_file=3, **about)  # type: ignore[arg-type]
    shutil.copytree(root / "differs", root / "broken")
    for change in (_write_twice, _write_parquet, _break_lines):
        change(root / "broken")
    write_run(root / "resumed", rounding(5), ranks=range(3), steps=range(4))
    later = {"first_step": 3, "start_time": "2025-12-04T21:34:40+0800"}
    write_run(root / "later", rounding(6), ranks=range(3), steps=range(3, 6), ops=("norm", "max"), **later)
    for path in (root / "later").iterdir():
        path.rename(root / "resumed" / path.name.replace("Dec03", "Dec04"))
    return root


def _growing(at: Where, tensor: Array) -> Array | None:
    if at.rank == 1 and at.name == "head.weight":
        return None
    grown = rounding(3, 1e-5)(at, tensor) * (1 + 1e-3 * at.step if at.signal == "actv" else 1)
    return grown * (2 if at.step >= 3 and at.rank == 2 else 1)


def _write_twice(root: Path) -> None:
    for path in sorted(root.glob("*/grad_reduced*.csv"))[::3]:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        path.write_text("".join(lines + lines[1:9]), encoding="utf-8")


def _break_lines(root: Path) -> None:
    for n, path in enumerate(sorted(root.glob("*/*.csv"))[::4]):
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        wrong = [line.replace(",", ",x", 2) for line in lines[3 : 5 + n % 4]]
        path.write_text("".join([*lines[:3], *wrong, *lines[5 + n % 4 :]])[: -20 if n % 3 else None], encoding="utf-8")


def _write_parquet(root: Path) -> None:
    for path in sorted(root.glob("*/*.csv"))[::2]:
        duckdb.sql(f"COPY (FROM read_csv('{path}')) TO '{path.with_suffix('.parquet')}' (FORMAT parquet)")
        path.unlink()
    damaged = next(root.glob("*/*.parquet"))
    damaged.write_bytes(damaged.read_bytes()[:200])


@pytest.mark.parametrize(
    ("name", "options", "number"),
    [
        ("differs", Options(2, 3, signals=("actv", "grad_reduced"), ops=("norm",), relative=1e-7), 6),
        ("broken", Options(), 8),
        ("resumed", Options(), 4),
    ],
)
def test_pieces_change_no_byte(runs: Path, name: str, options: Options, number: int) -> None:
    """More pieces than ranks, shuffled: by ranks, then by steps, down to one."""
    wanted = as_json(compare(runs / "a", runs / name, options))
    engine = CutEngine(number, seed=number)
    assert as_json(compare(runs / "a", runs / name, options, engine=engine)) == wanted


def test_a_failed_piece_is_named(runs: Path) -> None:
    """The others are compared, the result is none over all ranks, and the runs are not the same."""
    found = compare(runs / "a", runs / "a", engine=CutEngine(3, failing=[1]))
    assert found.problems == [f"{runs / 'a'}: rank 1: OSError: the machine is gone: left out"]
    assert found.skipped
    assert found.ranks == [(rank, rank) for rank in (0, 2)]
    assert found.rows == 2 * 6 * test_compare.ROWS_A_STEP


def test_nothing_is_compared_if_every_piece_fails(runs: Path) -> None:
    """The error names the pieces."""
    with pytest.raises(ValueError, match=r"none can be read\n.*3 ranks from 0 to 2: OSError: the machine is gone"):
        compare(runs / "a", runs / "a", engine=CutEngine(1, failing=[1]))


def test_the_command_works_in_pieces(runs: Path) -> None:
    """The same output of two processes, also of broken lines; and the cost alone before anything is read."""

    def output(*args: str) -> tuple[str, int]:
        result = CliRunner().invoke(app, ["compare", str(runs / "a"), str(runs / "broken"), *args])
        return result.stdout, result.exit_code

    plain = output("--json")
    assert plain[1] == 1
    assert output("--json", "--engine", "local", "-j", "2") == plain
    cost, code = output("--explain")
    assert code == 0
    assert cost.startswith("1 piece: 3 ranks, 60 files, ")
    assert output("--engine", "nowhere")[1] == 2


@pytest.mark.parametrize("name", ACROSS_ROWS)
def test_comparisons_in_pieces(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of comparisons once more, in pieces."""
    monkeypatch.setattr(test_compare, "compare", functools.partial(compare, engine=CutEngine(2, seed=3)))
    getattr(test_compare, f"test_{name}")(tmp_path)
