"""Report of many ranks: every rank over steps, in several orders, and ranks far from their replicas."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
from typer.testing import CliRunner

from probe.cli import app
from probe.core.analysis.engines import engine_of
from probe.core.analysis.pictures import layout, run_cells
from probe.core.analysis.pictures.farthest import FarRank, far_ranks, farthest
from probe.core.analysis.pictures.layout import plan
from probe.core.analysis.pictures.rank_table import rank_table
from probe.core.analysis.pictures.run_cells import CellWork, RunSource, SignalCells
from probe.core.analysis.pieces import Piece
from probe.core.analysis.report.write import write_report
from probe.core.naming import STEP_SECONDS
from probe.core.storage.directories import last_run
from probe.core.storage.duckdb_reader import Rows
from probe.core.storage.packed.pack import pack
from probe.core.storage.problems import Problems
from tests.core.analysis.many_ranks_data import NAMES, TENSOR_PARALLEL, replicas, usual, write_many_ranks
from tests.core.analysis.performance_data import write_calls, write_rank
from tests.core.analysis.report_data import write_run
from tests.core.analysis.test_report import PageFile
from tests.required import require

pytestmark = pytest.mark.slow

require("duckdb")

R = TypeVar("R")
RANKS, STEPS = 96, 6


def planted(rank: int, step: int, row: int) -> float:
    """One rank is NaN from a step on, one is 37 times too large once, one too small, and all else equal on replicas."""
    if (rank, row) == (77, 0) and step >= 3:
        return math.nan
    factor = {(23, 5, 2): 37.0, (50, 2, 1): 1 / 8}.get((rank, step, row), 1.0)
    return float(f"{usual(rank, step, row) * factor:.6g}")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("many")
    write_many_ranks(found, RANKS, STEPS, planted, lambda rank, _: 1.5 if rank == 42 else 1.0)
    return found


@pytest.fixture(scope="module")
def cells(root: Path) -> tuple[CellWork, SignalCells, list[FarRank]]:
    """Cells and farthest ranks of the only signal."""
    run = last_run(root, Problems())
    table = rank_table(run)
    with Rows(run.directories, Problems()) as rows:
        source = RunSource(rows, table)
        known, _ = source.survey()
        chosen = plan(known, len(run.ranks), table.shares())
        work = CellWork(chosen, table)
        [(_, found)] = source.cells(work)
        [far] = farthest([far_ranks(rows, None, table, chosen)]).values()
    return work, found, far


def test_orders_are_those_in_which_ranks_differ(root: Path) -> None:
    """By rank, host, stage and group; one that would tear a line is left out."""
    table = rank_table(last_run(root, Problems()))
    orders = {order.title: order for order in table.orders()}
    assert list(orders) == ["rank", "host", "pipeline stage", "group"]
    group = orders["group"].lines.tolist()
    assert group[: RANKS // 2 // TENSOR_PARALLEL] == replicas(0, RANKS)
    assert sorted(group) == list(range(RANKS))
    assert [order.title for order in table.orders(4)] == ["rank", "host", "pipeline stage"]
    assert [order.title for order in table.orders(5)] == ["rank"]


def test_every_rank_has_a_line(cells: tuple[CellWork, SignalCells, list[FarRank]]) -> None:
    """Lines are the numbers that each rank wrote."""
    work, found, _ = cells
    assert work.plan.ranks
    assert found.ranks
    assert work.plan.ranks.ranks_a_line == 1
    half = RANKS // 2  # names of the first stage come first, then those of the second; a line is of one stage
    for row in range(2 * len(NAMES)):
        of_row = found.ranks.row_cells(row)["norm"]
        own = range(half) if row < len(NAMES) else range(half, RANKS)
        written = [[planted(rank, step, row % len(NAMES)) for step in range(STEPS)] for rank in own]
        np.testing.assert_allclose(of_row.shown(), written, rtol=1e-6)
        assert not of_row.is_missing().any()


def test_the_farthest_ranks_are_those_that_were_planted(
    cells: tuple[CellWork, SignalCells, list[FarRank]],
) -> None:
    """With factor, step and name; ranks like their replicas are not listed."""
    far = {each.rank: each for each in cells[2]}
    assert [each.rank for each in cells[2]] == [77, 23, 50]
    assert (far[77].step, far[77].name, math.isnan(far[77].value)) == (3, NAMES[0], True)
    assert (far[23].step, far[23].name, far[23].median) == (5, NAMES[2], usual(23, 5, 2))
    assert -far[23].minus_factor == pytest.approx(37, rel=1e-5)
    assert (far[50].step, far[50].name) == (2, NAMES[1])
    assert -far[50].minus_factor == pytest.approx(8, rel=1e-5)


def test_the_farthest_of_parts_are_the_farthest_of_all() -> None:
    """Whatever the parts and their order."""
    rng = random.Random(3)
    all_ = [
        FarRank(-rng.randrange(1, 40), step, 0, 0, "a", "", 0, 1.0, 1.0, rank)
        for step in range(9)
        for rank in range(90)
    ]
    whole = farthest([{"s": all_}])["s"]
    assert len({far.rank for far in whole}) == len(whole) == 50
    for number in (2, 7, 9):
        parts = [{"s": farthest([{"s": all_[n::number]}])["s"]} for n in range(number)]
        rng.shuffle(parts)
        assert farthest(parts)["s"] == whole


class Shuffled:
    """An engine that applies a function here, to the pieces in a random order."""

    width = 2

    def each(self, function: Callable[[Piece], R], pieces: Iterable[Piece]) -> Iterator[tuple[Piece, R | Exception]]:
        """Results as they come."""
        order = list(pieces)
        random.Random(len(order)).shuffle(order)
        for piece in order:
            yield piece, function(piece)


@pytest.fixture(scope="module")
def whole(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the run read in one go."""
    page = tmp_path_factory.mktemp("page") / "whole.html"
    write_report(root, page)
    return page


def test_the_page_does_not_depend_on_pieces(
    root: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal bytes for 11 pieces of unlike numbers of ranks and of steps, in any order, and for the run read in one
    go."""
    for name in ("by_ranks", "by_steps"):
        cut = getattr(run_cells, name)

        def cut_into(run: object, rows: object, *rest: object, cut=cut, **options: object) -> list[Piece]:  # type: ignore[no-untyped-def]
            least = 1 if "most_bytes" in options else 11
            return list(cut(run, rows, *rest, **{**options, "least": least}))

        monkeypatch.setattr(run_cells, name, cut_into)
    write_report(root, tmp_path / "pieces.html", engine=Shuffled())
    assert (tmp_path / "pieces.html").read_bytes() == whole.read_bytes()


def test_few_ranks_in_pieces_give_the_same_page(tmp_path: Path) -> None:
    """By two processes too; with problems in the files."""
    first, *_ = write_run(tmp_path / "run", ranks=3, steps=range(6), cost_seconds={"hooks": 3.0, "steps": 8.0})
    wrong = first / "grad_reduced_0-1.csv"
    wrong.write_text(wrong.read_text().replace("0,fc1.bias,1,", "0,fc1.bias,what,"))
    (first / "actv_4-5.csv").write_text("hello,world\n1,2\n")
    write_report(first.parent, tmp_path / "whole.html")
    with engine_of("local", 2, environ={}) as engine:
        write_report(first.parent, tmp_path / "pieces.html", engine=engine)
    assert (tmp_path / "pieces.html").read_bytes() == (tmp_path / "whole.html").read_bytes()


def test_the_performance_is_that_of_all_ranks_too(tmp_path: Path) -> None:
    """Curves, throughput and communication are the same if cells are read in pieces."""
    for rank in range(3):
        directory = write_rank(
            tmp_path / "run", rank, range(40), lambda step: {STEP_SECONDS: 1 + step % 7 / 9, "loss": 1 / 3}
        )
        write_calls(directory, [(step, "all_reduce.ranks0-1.train.py[9].post", 1, 8e6, 0.1) for step in range(40)])
    write_report(tmp_path / "run", tmp_path / "whole.html")
    write_report(tmp_path / "run", tmp_path / "pieces.html", engine=Shuffled())
    assert (tmp_path / "pieces.html").read_bytes() == (tmp_path / "whole.html").read_bytes()
    titles = [table["title"] for table in PageFile(tmp_path / "whole.html").answer("performance")["tables"]]
    assert "Communication by call site (40 sampled steps)" in titles


def test_a_packed_run_gives_the_same_page(root: Path, whole: Path, tmp_path: Path) -> None:
    """But for the path and the name of the folder; in one go and in pieces."""
    pack(root, tmp_path / "packed")
    as_written = PageFile(whole)
    expected = (
        str(as_written.answers).replace(str(root.resolve()), "").replace(f"'name': '{root.name}'", "'name': 'packed'")
    )
    for engine in (None, Shuffled()):
        write_report(tmp_path / "packed", tmp_path / "page.html", engine=engine)
        page = PageFile(tmp_path / "page.html")
        assert page.cells == as_written.cells
        assert str(page.answers).replace(str((tmp_path / "packed").resolve()), "") == expected


def test_a_page_of_random_numbers_of_many_ranks_has_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not compress fits too: the bytes of a cell, times the most cells, are below 15 MB."""
    rng = random.Random(1)
    for name in ("MANY_CELLS", "MANY_RANK_CELLS"):
        monkeypatch.setattr(layout, name, getattr(layout, name) // 50)
    write_many_ranks(
        tmp_path,
        128,
        64,
        lambda *_: rng.uniform(0.1, 10) * 10 ** rng.randrange(-3, 3),
        names=tuple(f"layers.{n}" for n in range(12)),
    )
    size = write_report(tmp_path, tmp_path / "page.html").size
    assert 50 * max(0, size - 200_000) < 15_000_000


def test_the_command_reads_in_pieces_and_says_so_before(root: Path, tmp_path: Path) -> None:
    """``--explain`` writes nothing; ``-j`` gives the page."""
    out = tmp_path / "page.html"
    result = CliRunner().invoke(app, ["report", str(root), "-o", str(out), "--explain"])
    assert result.exit_code == 0, result.output
    assert "96 ranks, 192 files" in result.output
    assert "comparison of replicas" in result.output
    assert not out.exists()
    result = CliRunner().invoke(
        app, ["report", str(root), "-o", str(out), "--no-judge", "-j", "2", "--engine", "local"]
    )
    assert result.exit_code == 0, result.output
    assert f"{RANKS * STEPS * len(NAMES) + 0:,} rows of {RANKS} ranks" in result.output.replace("\n", " ")
