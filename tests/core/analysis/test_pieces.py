"""A run cut into pieces: together they hold every row once."""

from __future__ import annotations

import pickle
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from probe.core.analysis.engines import engine_of, read_each
from probe.core.analysis.pieces import Piece, by_ranks, by_steps, opened, reading_cost
from probe.core.output.sinks.parquet import ParquetSink
from probe.core.records import Batch, Key
from probe.core.storage.directories import RecordedRun, last_run
from probe.core.storage.duckdb_reader import Rows
from probe.core.storage.packed.pack import pack
from probe.core.storage.problems import Problems
from tests.core.analysis.causes_data import write_rank, write_run
from tests.core.analysis.pieces_data import Table, merged, table
from tests.core.output.sink_data import context, snapshot
from tests.required import require
from tests.simulated_run import ParallelSizes, SimulatedRun

require("duckdb")

RANKS, STEPS = 5, 23
Cutter = Callable[..., list[Piece]]


def write_mixed(root: Path) -> None:
    """Five ranks of 23 steps: one was resumed, one has written Parquet, one has a line that is torn."""
    write_run(root, RANKS, STEPS)
    write_rank(root, 2, range(15, 30), time="Dec04_10-00-00", start_time="2026-12-04T10:00:00+0800")
    other = write_rank(root, RANKS, [0])
    sink = ParquetSink(context(root, directory=other, rank=RANKS, steps_per_file=5))
    sink.open()
    keys = (Key("a.weight"), Key("b.weight"))
    for step in range(STEPS):
        columns = {"sumsq": np.array([1.0, 4.0]), "nans": np.array([0.0, 1.0])}
        batch = Batch("mv", step, keys, ((4,),) * 2, ("torch.float32",) * 2, np.arange(2), columns)
        sink.write(snapshot(step, batch, ops=("norm", "nans")))
    sink.close()
    torn = next((root / "Dec03_21-34-40-rank1-00000001").glob("actv_20*.csv"))
    torn.write_bytes(torn.read_bytes()[:-9])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("run")
    write_mixed(root)
    return root


@pytest.fixture(scope="module")
def whole(root: Path) -> tuple[RecordedRun, Table, Problems]:
    problems = Problems()
    run = last_run(root, problems)
    with Rows(run.directories, problems) as rows:
        found = table(rows, by_ranks(run, rows)[0])
    return run, merged([found]), problems


@pytest.mark.parametrize(
    ("cut", "number", "known"),
    [
        (by_ranks, 1, True),
        (by_ranks, 7, False),
        (by_ranks, 64, True),
        (by_steps, 2, False),
        (by_steps, 7, True),
        (by_steps, 11, False),
    ],
)
def test_pieces_hold_every_row_once(
    whole: tuple[RecordedRun, Table, Problems], root: Path, cut: Cutter, number: int, known: bool
) -> None:
    """However many pieces there are, and in whatever order, they give the rows and the problems of the whole run."""
    run, expected, of_whole = whole
    problems = Problems()
    last_run(root, problems)
    if known:
        with Rows(run.directories, problems) as rows:
            pieces = cut(run, rows, least=number)
    else:
        pieces = cut(run, least=number)
    random.Random(number).shuffle(pieces)
    with engine_of("local") as engine:
        found = list(read_each(engine, table, pieces, problems))
    assert len(found) == len(pieces)
    assert 1 <= len(pieces) <= max(number, 2 * RANKS)
    assert merged(found) == expected
    assert {str(each) for each in problems.kept} == {str(each) for each in of_whole.kept}
    assert of_whole.number == 1, of_whole.lines()


def test_numbers_of_pieces_are_those_asked_for(whole: tuple[RecordedRun, Table, Problems]) -> None:
    """A run is cut into as many pieces as there are to be, and into no more than it has ranks."""
    run = whole[0]
    assert [len(by_ranks(run, least=number)) for number in (1, 2, 5, 6, 64)] == [1, 2, 5, 6, 6]
    assert [len(by_steps(run, least=number)) for number in (1, 2, 5)] == [1, 2, 5]


def test_pieces_are_of_about_equal_bytes(tmp_path: Path) -> None:
    """A rank that has written far more than others is a piece of its own, and the others are not split one by one."""
    for rank in range(8):
        write_rank(tmp_path, rank, range(200 if rank == 3 else 5), world_size=8)
    pieces = by_ranks(last_run(tmp_path, Problems()), least=4)
    assert [3] in [list(piece.ranks) for piece in pieces]
    assert len(pieces) < 8
    assert sum(piece.bytes for piece in pieces) == pytest.approx(
        by_ranks(last_run(tmp_path, Problems()))[0].bytes, rel=0.01
    )


def test_no_piece_is_larger_than_asked_for_unless_a_rank_is(tmp_path: Path) -> None:
    """With a limit of bytes, pieces keep to it, but for those that cannot be cut."""
    write_run(tmp_path, 6, 40)
    run = last_run(tmp_path, Problems())
    one = by_ranks(run, least=6)[0].bytes
    assert [len(piece.ranks) for piece in by_ranks(run, most_bytes=2 * one + 1000)] == [2, 2, 2]
    assert [len(piece.ranks) for piece in by_ranks(run, most_bytes=1)] == [1] * 6


@pytest.mark.parametrize(("steps_per_file", "pieces"), [(20, 2), (1, 20), (5, 4)])
def test_steps_are_not_cut_where_files_would_be_opened_too_often(
    steps_per_file: int, pieces: int, tmp_path: Path
) -> None:
    """A small file that has all steps of its rank is not opened for each of many ranges; where files end, cuts are
    free."""
    run = SimulatedRun(ParallelSizes(dp=20), None, 0, 20, 10, steps_per_file=steps_per_file)
    run.write(tmp_path, processes=1)
    found = by_steps(last_run(tmp_path, Problems()), signals=["actv"], most_bytes=1, least=2)
    assert len(found) == pieces


def test_ranges_of_steps_are_contiguous_and_begin_with_files(whole: tuple[RecordedRun, Table, Problems]) -> None:
    """Ranges follow each other without a gap, from step 0 to the last possible one; few pieces read whole files."""
    pieces = by_steps(whole[0], least=3)
    spans = [piece.steps for piece in pieces if piece.steps]
    assert spans[0][0] == 0
    assert spans[-1][1] >= 2**31 - 1
    assert all(before[1] + 1 == after[0] for before, after in pairwise(spans))
    assert all(first % 5 == 0 for first, _ in spans)


def test_a_piece_lists_only_files_of_its_steps(whole: tuple[RecordedRun, Table, Problems]) -> None:
    """No query of a piece names a file that can hold none of its steps, or a signal that was not asked for; only the
    last file of a directory may have steps beyond those of its name."""
    for piece in by_steps(whole[0], least=5, signals=["actv"]):
        problems = Problems()
        with opened(piece, problems) as rows:
            assert set(rows.signals) == {"actv"}
            first, last = piece.steps or (0, 0)
            ends = {n: piece_end(piece, n) for n, _ in rows.files["actv"]}
            assert all(
                file.first <= last and (file.last >= first or file.first == ends[n]) for n, file in rows.files["actv"]
            )


def piece_end(piece: Piece, n: int) -> int:
    """The first step of the last file of a directory."""
    names = (path.stem.rpartition("_")[2] for path in piece.directories[n].path.glob("actv_*.csv"))
    return max(int(name.split("-")[0]) for name in names)


@pytest.mark.parametrize("cut", [by_ranks, by_steps])
def test_halves_hold_the_rows_of_their_piece(whole: tuple[RecordedRun, Table, Problems], cut: Cutter) -> None:
    """A piece is cut in two and again until it cannot be cut: the parts have its rows, and know whose they are."""
    run, expected, _ = whole
    parts, done = cut(run), []
    while parts:
        piece = parts.pop()
        halves = piece.halves()
        assert len(halves) in (0, 2)
        parts += halves
        if not halves:
            done.append(piece)
    found = []
    for piece in done:
        with opened(piece, Problems()) as rows:
            found.append(table(rows, piece))
    assert merged(found) == expected
    assert len(done) == (RANKS + 1 if cut is by_ranks else 30)


def test_pieces_of_ranks_are_not_cut_by_steps_unless_allowed(whole: tuple[RecordedRun, Table, Problems]) -> None:
    """A rule looks back over the steps of a rank: only who can merge steps, too, allows such a cut."""
    run = whole[0]
    assert all(not piece.halves() for piece in by_ranks(run, least=64))
    both = by_ranks(run, least=64, cuts=("ranks", "steps"))[0].halves()
    assert [piece.ranks for piece in both] == [(0,), (0,)]
    assert [piece.steps is not None for piece in both] == [True, True]


def test_a_file_that_has_gone_is_named(tmp_path: Path) -> None:
    """A file that was there when the run was opened, and is not when its piece is read, is among the problems."""
    write_run(tmp_path, 2, 10)
    problems = Problems()
    run = last_run(tmp_path, problems)
    with Rows(run.directories, problems) as rows:
        pieces = by_ranks(run, rows, least=2)
    gone = next(run.directories[1].path.glob("actv_5*.csv"))
    gone.unlink()
    with engine_of("local") as engine:
        list(read_each(engine, table, pieces, problems))
    assert [(each.path, each.skipped) for each in problems.kept] == [(gone, True)]


def test_a_piece_is_small_and_can_be_pickled(whole: tuple[RecordedRun, Table, Problems]) -> None:
    """What is sent to a worker has no manifest, unless it was asked for."""
    piece, full = by_ranks(whole[0])[0], by_ranks(whole[0], manifests=True)[0]
    assert not any(directory.manifest for directory in piece.directories)
    assert all(directory.manifest for directory in full.directories)
    assert len(pickle.dumps(piece)) < 40_000
    assert pickle.loads(pickle.dumps(piece)) == piece


def test_the_cost_is_that_of_the_files(whole: tuple[RecordedRun, Table, Problems], root: Path) -> None:
    """What is told before anything is read are the numbers and bytes of the files that are there."""
    files = [path for path in root.glob("*/*") if path.suffix in (".csv", ".parquet")]
    cost = reading_cost(by_ranks(whole[0], least=3))
    assert (cost.pieces, cost.ranks, cost.files) == (3, RANKS + 1, len(files))
    assert cost.bytes == pytest.approx(sum(path.stat().st_size for path in files), abs=len(files))
    assert cost.text.startswith("3 pieces: 6 ranks, ")


@pytest.fixture(scope="module")
def packed(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, packed into several files."""
    folder = tmp_path_factory.mktemp("packed") / "run"
    pack(root, folder, block_bytes=12_000)
    return folder


@pytest.mark.parametrize(("cut", "number"), [(by_ranks, 2), (by_ranks, 64), (by_steps, 7), (by_steps, 20)])
def test_pieces_of_a_packed_run_hold_every_row_once(
    whole: tuple[RecordedRun, Table, Problems], packed: Path, cut: Cutter, number: int
) -> None:
    """Pieces of a packed run give the rows of the run as it was written."""
    problems = Problems()
    run = last_run(packed, problems)
    with Rows(run.directories, problems) as rows:
        pieces = cut(run, rows, least=number)
    assert [replace(piece, checked=True) for piece in cut(run, least=number)] == pieces
    random.Random(number).shuffle(pieces)
    with engine_of("local") as engine:
        assert merged(list(read_each(engine, table, pieces, problems))) == whole[1]
    assert problems.number == 1
    assert all(0 <= n < len(piece.directories) for piece in pieces for own in piece.files.values() for n, _ in own)


def test_a_packed_file_that_is_missing_fails_its_pieces_by_name(packed: Path, tmp_path: Path) -> None:
    """No answer is over fewer ranks than it says: a piece whose packed file has gone is a problem."""
    copy = tmp_path / "run"
    shutil.copytree(packed, copy)
    problems = Problems()
    pieces = by_ranks(last_run(copy, problems), least=3)
    pieces[0].files["actv"][0][1].path.unlink()
    with engine_of("local") as engine:
        found = list(read_each(engine, table, pieces, problems))
    assert len(found) < len(pieces)
    assert problems.skipped
    assert str(pieces[0]) in "\n".join(map(str, problems.kept))
