"""``probe compare`` as people and scripts use it."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from probe.cli import app
from tests.core.analysis.compare_data import Array, Where, same, write_run
from tests.core.analysis.test_report import PageFile
from tests.required import require

pytestmark = pytest.mark.slow

require("duckdb")

PLACE = Where("grad_reduced", "layers.0.fc2.weight", 3, 0, 1)


def nan_there(at: Where, tensor: Array) -> Array:
    return tensor * (math.nan if at == PLACE else 1)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``a`` and ``same`` are equal; in ``nan`` one gradient of rank 1 is NaN."""
    root = tmp_path_factory.mktemp("runs")
    for name, change in (("a", same), ("same", same), ("nan", nan_there)):
        write_run(root / name, change, ranks=(0, 1))
    return root


def run(*args: object) -> Any:
    result = CliRunner().invoke(app, ["compare", *map(str, args)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_same_is_0(runs: Path) -> None:
    """It prints the number of rows."""
    result = run(runs / "a", runs / "same")
    assert result.exit_code == 0
    assert "The runs are the same: all numbers of 576 pairs of rows are equal, to the digits that were" in result.output


def test_different_is_1(runs: Path) -> None:
    """And names the place."""
    result = run(runs / "a", runs / "nan")
    assert result.exit_code == 1
    assert "First difference: step 3, rank 1: grad_reduced layers.0.fc2.weight" in result.output
    assert "it appears at once" in result.output
    for options, code in ((("--rank", 0), 0), (("--steps", "0-2"), 0), (("--steps", "3"), 1)):
        assert run(runs / "a", runs / "nan", "--signals", "grad_reduced", *options).exit_code == code
    assert run(runs / "a", runs / "nan", "--signals", "actv,param_origin").exit_code == 0


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--steps", "3-1"], "--steps: expected the smaller first, 1-3; got '3-1'"),
        (["--steps", "x"], "--steps: expected 0-99, 100-, -99 or 7; got 'x'"),
        (["--rtol", "inf"], "--rtol: expected a finite number, got inf; leave it out"),
        (["--rank", "a"], "--rank: expected 3, or 0:3 for A's rank 0 and B's rank 3; got 'a'"),
        (["--rank", "7"], "--rank: expected one of the ranks of "),
        (
            ["--signals", "grad_reduce"],
            "--signals: 'grad_reduce' is no signal of A (nearest: 'grad_reduced'); there are ",
        ),
        (["--ops", "nrm"], "--ops: 'nrm' is no number of A (nearest: 'norm')"),
        (["--map", "/nowhere.json"], "/nowhere.json: expected a mapping file"),
        (
            ["--out", "/nowhere/page.html"],
            "/nowhere/page.html: expected the name of a file in a directory that exists; there is no folder /nowhere",
        ),
        (["--steps", "100-"], "the runs have no step in common"),
    ],
)
def test_wrong_use_is_2(runs: Path, args: list[str], told: str) -> None:
    """The message has the expected form."""
    result = run(runs / "a", runs / "nan", *args)
    assert result.exit_code == 2
    assert told in result.stderr


def test_a_page_that_cannot_be_written_is_2(runs: Path, tmp_path: Path) -> None:
    """A folder is in its place."""
    result = run(runs / "a", runs / "nan", "-o", tmp_path)
    assert result.exit_code == 2
    assert f"{tmp_path}: expected the name of a file in a directory that exists; this is a folder" in result.stderr


def test_a_directory_without_a_run_is_2(runs: Path, tmp_path: Path) -> None:
    """Whichever of the two it is: none of this name, an empty one, or someone else's."""
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "data.txt").write_text("x", encoding="utf-8")
    (tmp_path / "empty").mkdir()
    for name in ("none", "empty", "else"):
        for pair in ((runs / "a", tmp_path / name), (tmp_path / name, runs / "a")):
            result = run(*pair)
            assert result.exit_code == 2
            assert f"{tmp_path / name}: expected" in result.stderr


def test_json_has_everything(runs: Path) -> None:
    """The verdict, the rows with both values, and what differs over steps; NaN as text."""
    result = run(runs / "a", runs / "nan", "--json")
    said = json.loads(result.stdout, parse_constant=pytest.fail)
    assert result.exit_code == 1
    (row,) = said["first"]
    assert [row[field] for field in ("signal", "name", "step", "rank")] == [*PLACE[:3], 1]
    assert {number["b"] for number in row["numbers"] if number["op"] in ("norm", "mean", "min", "max")} == {"nan"}
    assert {number["difference"] for number in row["numbers"] if number["op"] == "norm"} == {"inf"}
    assert (said["same"], said["rows"], said["beyond"]) == (False, 576, 1)


def test_a_page_is_written(runs: Path, tmp_path: Path) -> None:
    """One file with the verdict, the differing row and the differences over steps and by layer."""
    out = tmp_path / "page.html"
    result = run(runs / "a", runs / "nan", "-o", out)
    assert result.exit_code == 1
    found = PageFile(out).answers["/api/compare?run=0&against=1"]
    assert "First difference: step 3, rank 1: grad_reduced layers.0.fc2.weight" in found["verdict"]
    assert (found["agrees"], found["first_difference"]["right"], found["beyond"]) == (False, "nan", 1)
    (grown,) = (each for each in found["growth"] if each["signal"] == "grad_reduced")
    assert "inf" in grown["differences"]
    assert "layers.0.fc2.weight" in next(each for each in found["layers"] if each["signal"] == "grad_reduced")["names"]


@pytest.mark.parametrize(("sizes", "same_shape"), [((3, 6), True), ((6, 3), False)])
def test_shapes_are_compared_by_their_sizes(
    runs: Path, tmp_path: Path, sizes: tuple[int, int], same_shape: bool
) -> None:
    """MindSpore writes (3, 6) and PyTorch [3, 6]; a row with another difference is not reported for its shape."""
    for name in ("a", "nan"):
        root = tmp_path / name
        shutil.copytree(runs / name, root)
        for path in root.glob("*/*.csv"):
            text = path.read_text(encoding="utf-8")
            path.write_text(
                re.sub(r"\[3, 6\]|\[(6, 4|6)\]", lambda m: f"({m[1] or str(sizes)[1:-1]})", text), encoding="utf-8"
            )
    whole = run(runs / "a", tmp_path / "a")
    assert (whole.exit_code == 0) is same_shape
    assert ("shape [3, 6] against (6, 3)" in whole.output) is not same_shape
    first = run(runs / "a", tmp_path / "nan", "--signals", "grad_reduced").output
    assert "nan, relative difference inf" in first


def test_unreadable_lines_are_1(tmp_path: Path) -> None:
    """Unreadable data are listed with file and line, and sameness is no longer certain."""
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b")
    path = next(b.glob("*/grad_reduced_0-3.csv"))
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    cells = lines[5].split(",")
    path.write_text("".join([*lines[:5], ",".join([*cells[:3], "much", *cells[4:]]), *lines[6:]]), encoding="utf-8")
    result = run(a, b, "--common")
    assert result.exit_code == 1
    assert result.output.count(f"{path}:6: ") == 1
    expected = (
        "all numbers of 287 pairs of rows are equal, to the digits that were written, as far as they could be read."
    )
    assert f"The runs are the same: {expected}" in result.output


def test_broken_files_are_left_out(tmp_path: Path) -> None:
    """An empty file, a foreign one and a torn last line: each is listed, the rest compared."""
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b")
    (directory,) = b.iterdir()
    (directory / "actv_0-3.csv").write_bytes(b"")
    (directory / "actv_grad_0-3.csv").write_text("date,price\n1,2\n", encoding="utf-8")
    torn = directory / "param_origin_4-7.csv"
    torn.write_bytes(torn.read_bytes()[:-20])
    result = run(a, b, "--common")
    assert result.exit_code == 1
    for name in ("actv_0-3.csv: expected a table; the file is empty", "actv_grad_0-3.csv:1: expected a header"):
        assert f"{directory / name}" in result.output
    assert f"{torn}:25: the last line is not finished" in result.output


def test_missing_ranks_are_told(tmp_path: Path) -> None:
    """A rank that should have written and did not is named; the others are compared."""
    a, b = write_run(tmp_path / "a", ranks=(0, 1)), write_run(tmp_path / "b", world_size=2)
    result = run(a, b)
    assert result.exit_code == 1
    assert "expected ranks 1 too; there is nothing of them" in result.output
    assert "ranks in A alone: 1" in result.output


def test_names_cannot_be_markup(tmp_path: Path) -> None:
    """They reach neither the terminal nor the page."""
    name = "<b>[bold]head</b></script>"
    a = write_run(tmp_path / "a", rename={"head": name})
    b = write_run(tmp_path / "b", lambda at, x: x * (2 if at.name == "head.bias" else 1), rename={"head": name})
    result = run(a, b, "-o", tmp_path / "page.html")
    assert f"param_origin {name}.bias" in result.output
    page = PageFile(tmp_path / "page.html")
    assert "b" not in page.tags
    assert f"{name}.bias" in page.answers["/api/compare?run=0&against=1"]["verdict"]
