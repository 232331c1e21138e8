"""The engine of this machine: results of every piece, in one process or in several, some of which end."""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from probe.cli.engines import progress_text
from probe.core.analysis.engines import PiecesDone, engine_of, mapped, read_each
from probe.core.analysis.pieces import Piece, by_ranks
from probe.core.storage.directories import last_run
from probe.core.storage.problems import Problems
from tests.core.analysis.causes_data import write_run
from tests.core.analysis.pieces_data import Marked, OnlyAlone, merged, ranks, table
from tests.required import require
from tests.waiting import wait_for

require("duckdb")

RANKS = 6


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("run")
    write_run(root, RANKS, 12)
    return root


def pieces_of(root: Path, number: int) -> list[Piece]:
    return by_ranks(last_run(root, Problems()), least=number)


def flat(found: list[tuple[int, ...]]) -> list[int]:
    return [rank for each in found for rank in each]


def test_results_do_not_depend_on_processes_or_pieces(root: Path) -> None:
    """One process and two give the same rows, whatever the number and order of pieces."""
    results = []
    for processes, number in ((1, 1), (1, 2), (1, 64), (2, 64)):
        pieces, problems = pieces_of(root, number), Problems()
        random.Random(number).shuffle(pieces)
        with engine_of("local", processes) as engine:
            assert engine.width == processes
            results.append(merged(list(read_each(engine, table, pieces, problems))))
        assert problems.kept == []
    assert all(result == results[0] for result in results)
    assert {row[1] for row in results[0]["actv"]} == set(range(RANKS))


@pytest.mark.parametrize("processes", [1, 2])
def test_results_come_in_the_order_of_pieces(root: Path, processes: int) -> None:
    """The order of results is that of the pieces."""
    pieces = pieces_of(root, 6)[::-1]
    with engine_of("local", processes) as engine:
        assert flat(list(mapped(engine, ranks, pieces, Problems()))) == [5, 4, 3, 2, 1, 0]


def test_a_piece_that_fails_is_named(root: Path, tmp_path: Path) -> None:
    """The others' results are there, and the failed piece is a problem by which data were left out."""
    problems = Problems()
    with engine_of("local") as engine:
        found = list(mapped(engine, Marked(tmp_path, 3, 99, "wrong"), pieces_of(root, 6), problems))
    assert flat(found) == [0, 1, 2, 4, 5]
    assert [str(each) for each in problems.kept] == [f"{root}: rank 3: LookupError: no such row: left out"]
    assert problems.skipped


@pytest.mark.parametrize(("processes", "end"), [(1, "exhausted"), (2, "exhausted"), (2, "killed")])
def test_a_piece_that_is_too_large_is_halved(root: Path, processes: int, end: str) -> None:
    """Pieces for which the memory is too little, or with which a process is killed, are done in parts, in order."""
    problems = Problems()
    with engine_of("local", processes) as engine:
        found = list(mapped(engine, OnlyAlone(end), pieces_of(root, 2), problems))
    assert found == [(rank,) for rank in range(RANKS)]
    assert problems.kept == []


@pytest.mark.parametrize("end", ["exhausted", "killed"])
def test_a_rank_that_is_too_large_is_named_and_the_others_are_kept(root: Path, end: str) -> None:
    """What cannot be halved any more is among the problems, and no other rank is lost with it."""
    problems = Problems()
    with engine_of("local", 2) as engine:
        found = list(mapped(engine, OnlyAlone(end, never=4), pieces_of(root, 2), problems))
    assert flat(found) == [0, 1, 2, 3, 5]
    assert [str(each).split(":")[1] for each in problems.kept] == [" rank 4"]


def test_a_process_that_is_killed_once_costs_no_piece(root: Path, tmp_path: Path) -> None:
    """The pieces of a process that was killed from outside are done again, as they are."""
    problems = Problems()
    with engine_of("local", 2) as engine:
        found = list(mapped(engine, Marked(tmp_path, 1, 1, "killed"), pieces_of(root, 3), problems))
    assert found == [(0, 1), (2, 3), (4, 5)]
    assert problems.kept == []


def process_of(_: Piece) -> int:
    """The process that works on a piece."""
    return os.getpid()


def is_there(process: int) -> bool:
    """Whether a process has not been waited for."""
    return Path(f"/proc/{process}").exists()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="there is /proc on Linux alone")
def test_passes_are_read_by_the_same_processes(root: Path) -> None:
    """Until one is killed: then the next pass has others. None is left at the end."""
    pieces, problems = pieces_of(root, 6), Problems()
    with engine_of("local", 2) as engine:
        passes = [set(mapped(engine, process_of, pieces, problems)) for _ in range(3)]
        first = set[int]().union(*passes)
        assert len(first) <= 2
        assert os.getpid() not in first
        os.kill(min(first), signal.SIGKILL)
        wait_for(lambda: not any(map(is_there, first)), about="the others of a killed process do not end")
        second = set(mapped(engine, process_of, pieces, problems))
    assert problems.kept == []
    assert not any(map(is_there, second))


def test_an_error_of_all_pieces_is_raised(root: Path) -> None:
    """A package that is missing is no problem of one piece: the call ends."""
    with engine_of("local") as engine, pytest.raises(ImportError, match="no such package"):
        list(mapped(engine, _lacking, pieces_of(root, 3), Problems()))


def _lacking(piece: Piece) -> None:
    raise ImportError("no such package")


class _Losing:
    """An engine that forgets pieces."""

    width = 1

    def each(self, function: Any, pieces: Any) -> Any:
        return ((piece, function(piece)) for n, piece in enumerate(pieces) if n != 1)


def test_a_piece_without_any_result_is_named(root: Path) -> None:
    """An answer is never over fewer pieces than it says, whatever an engine does."""
    problems = Problems()
    found = list(mapped(_Losing(), ranks, pieces_of(root, 3), problems))
    assert found == [(0, 1), (4, 5)]
    assert [str(each) for each in problems.kept] == [f"{root}: 2 ranks from 2 to 3: there is no result: left out"]
    assert problems.skipped


def test_progress_counts_halves_once(root: Path) -> None:
    """A piece that was halved counts as one, and the bytes of all pieces are counted."""
    seen: list[PiecesDone] = []
    pieces = pieces_of(root, 2)
    with engine_of("local", 1, seen.append) as engine:
        list(mapped(engine, OnlyAlone("exhausted"), pieces, Problems()))
    assert [each.total for each in seen] == [2] * RANKS
    assert seen[-1].done == pytest.approx(2)
    assert seen[-1].bytes == pytest.approx(sum(piece.bytes for piece in pieces), abs=RANKS)


def test_progress_is_a_line_for_people() -> None:
    """Pieces, speed and time left; bytes where rows are unknown."""
    done = PiecesDone(2, 8, 4_000_000, 0, 2.0)
    assert progress_text(done) == "2 of 8 pieces, 2.0 MB/s, 6 s left"
    assert progress_text(done._replace(rows=3000)) == "2 of 8 pieces, 1,500 rows/s, 6 s left"
    assert progress_text(done._replace(total=0)) == "2 pieces, 2.0 MB/s"


def test_unknown_engines_are_refused() -> None:
    """A name that no engine has, and no process at all, are refused with the names that there are."""
    with pytest.raises(ValueError, match="expected local, ray or an address such as ray://host:10001; got 'spark'"):
        engine_of("spark").__enter__()
    with pytest.raises(ValueError, match="expected 1 or more; got 0"):
        engine_of("local", 0).__enter__()


def test_the_local_engine_looks_for_no_ray(root: Path) -> None:
    """Without being asked for, Ray is not imported."""
    from tests.test_layering import tried_imports

    assert tried_imports(["probe.core.analysis.engines.ray", "probe.cli.engines"], ["ray"]) == []
