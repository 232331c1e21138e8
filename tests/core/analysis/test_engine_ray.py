"""The engine of a real Ray cluster, of which a node is lost; workers that end; slow ones."""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from probe.core.analysis.engines import ADDRESS, PieceEngine, engine_of, mapped, read_each
from probe.core.analysis.engines import ray as ray_module
from probe.core.analysis.engines.ray import RayEngine
from probe.core.analysis.pieces import Piece, by_ranks, by_steps
from probe.core.storage.directories import last_run
from probe.core.storage.problems import Problems
from tests.core.analysis.causes_data import write_run
from tests.core.analysis.pieces_data import Doomed, Marked, OnlyAlone, merged, ranks, table
from tests.ray_cluster import NODE, ray_cluster
from tests.required import require

require("duckdb")
ray = require("ray")
pytestmark = pytest.mark.slow

RANKS = 6


class Connected(NamedTuple):
    """The engine of a cluster that ``RAY_ADDRESS`` names."""

    engine: PieceEngine
    address: str
    cluster: Any
    handler: Any
    """Of SIGTERM, while it is connected; it was the default before."""


@pytest.fixture(scope="module")
def connected() -> Iterator[Connected]:
    """One cluster of two CPUs for this file."""
    with ray_cluster(0, cpus=2) as cluster:
        own = signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            with engine_of(environ={ADDRESS: cluster.address}) as engine:
                yield Connected(engine, cluster.address, cluster, signal.getsignal(signal.SIGTERM))
        finally:
            signal.signal(signal.SIGTERM, own)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("run")
    write_run(root, RANKS, 12)
    return root


def pieces_of(root: Path, number: int) -> list[Piece]:
    return by_ranks(last_run(root, Problems()), least=number)


def test_the_cluster_of_the_environment_is_used(connected: Connected) -> None:
    """With ``RAY_ADDRESS`` and no engine named, the engine is that cluster, with a piece for each of its CPUs."""
    assert isinstance(connected.engine, RayEngine)
    assert ray.get_runtime_context().gcs_address == connected.address
    assert connected.engine.width == 2


def test_the_signal_handler_of_the_program_stays(connected: Connected) -> None:
    """Ray puts its own handler in place of that for SIGTERM, and the program's is put back."""
    assert connected.handler == signal.SIG_DFL


@pytest.mark.parametrize("cut", [by_ranks, by_steps])
def test_results_are_those_of_one_process(connected: Connected, root: Path, cut: Any) -> None:
    """Pieces in any order, of one rank or of a few steps, give the rows that one process reads."""
    run = last_run(root, Problems())
    with engine_of("local") as local:
        expected = merged(list(read_each(local, table, cut(run), Problems())))
    pieces, problems = cut(run, least=7 if cut is by_ranks else 20), Problems()
    random.Random(1).shuffle(pieces)
    assert len(pieces) >= RANKS
    assert merged(list(read_each(connected.engine, table, pieces, problems))) == expected
    assert problems.kept == []


def test_results_come_in_the_order_of_pieces(connected: Connected, root: Path) -> None:
    """The order of results is that of the pieces, whichever worker is first."""
    assert list(mapped(connected.engine, ranks, pieces_of(root, 6)[::-1], Problems())) == [
        (rank,) for rank in reversed(range(RANKS))
    ]


def test_pieces_are_taken_as_they_are_needed(connected: Connected, root: Path) -> None:
    """Few pieces are taken in advance."""
    taken: list[int] = []

    def source() -> Iterator[Piece]:
        for n, piece in enumerate(pieces_of(root, 6) * 4):
            taken.append(n)
            yield piece

    results = connected.engine.each(ranks, source())
    next(results)
    assert len(taken) <= 2 * connected.engine.width
    results.close()  # type: ignore[attr-defined]


def test_a_piece_that_fails_is_named(connected: Connected, root: Path, tmp_path: Path) -> None:
    """An exception of the function is that piece's problem; it is not tried again."""
    problems = Problems()
    function = Marked(tmp_path, 3, 99, "wrong")
    found = list(mapped(connected.engine, function, pieces_of(root, 6), problems))
    assert found == [(rank,) for rank in range(RANKS) if rank != 3]
    assert [str(each) for each in problems.kept] == [f"{root}: rank 3: LookupError: no such row: left out"]
    assert len(list(tmp_path.glob("call-*"))) == 1


@pytest.mark.parametrize(("end", "first"), [("exhausted", 0), ("killed", 4)])
def test_a_piece_that_is_too_large_is_halved_and_then_named(
    connected: Connected, root: Path, end: str, first: int
) -> None:
    """With too little memory, or workers that are killed, pieces are done in parts; what cannot be halved is named.
    Each worker that is killed takes seconds to replace, so only two ranks are asked for there."""
    problems = Problems()
    pieces = [piece for piece in pieces_of(root, 3) if piece.ranks[0] >= first]
    found = list(mapped(connected.engine, OnlyAlone(end, never=4), pieces, problems))
    assert found == [(rank,) for rank in range(first, RANKS) if rank != 4]
    assert [str(each).split(":")[1] for each in problems.kept] == [" rank 4"]
    assert problems.skipped


def test_a_worker_that_dies_once_costs_no_piece(connected: Connected, root: Path, tmp_path: Path) -> None:
    """A piece whose worker was killed is done again as it is."""
    problems = Problems()
    found = list(mapped(connected.engine, Marked(tmp_path, 1, 1, "killed"), pieces_of(root, 3), problems))
    assert found == [(0, 1), (2, 3), (4, 5)]
    assert problems.kept == []


def test_a_slow_piece_is_done_twice_and_the_first_result_counts(
    connected: Connected, root: Path, tmp_path: Path
) -> None:
    """The last piece hangs in one worker; another does it too, and the call ends with every result once."""
    engine, problems = RayEngine(ray, 2, patience_seconds=0.2), Problems()
    found = list(mapped(engine, Marked(tmp_path, 5, 1, "held"), pieces_of(root, 6), problems))
    (tmp_path / "go").touch()
    assert found == [(rank,) for rank in range(RANKS)]
    assert len(list(tmp_path.glob("call-*"))) == 2
    assert problems.kept == []


def test_a_node_that_is_lost_costs_no_piece(connected: Connected, root: Path, tmp_path: Path) -> None:
    """A node is killed while a piece runs on it: every result is there once, in order, without a problem."""
    node, problems = connected.cluster.add_node(**NODE), Problems()
    assert node.node_id in [each["NodeID"] for each in ray.nodes()]
    killer = threading.Thread(target=_lose, args=(connected.cluster, node, tmp_path / "running"), daemon=True)
    killer.start()
    found = list(mapped(RayEngine(ray, 3), Doomed(tmp_path, node.node_id), pieces_of(root, RANKS), problems))
    killer.join()
    assert (tmp_path / "running").exists()
    assert found == [(rank,) for rank in range(RANKS)]
    assert problems.kept == []


def _lose(cluster: Any, node: object, running: Path) -> None:
    """Kill a node once a piece runs on it."""
    while not running.exists():
        time.sleep(0.05)
    cluster.remove_node(node, allow_graceful=False)


def test_another_version_on_a_worker_is_an_error_at_once(
    connected: Connected, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No result is made by two versions: the call ends, and names both."""
    there = ray_module.__version__
    monkeypatch.setattr(ray_module, "__version__", "0.0.1")
    with pytest.raises(ValueError, match=rf"a worker has probe {there}; expected 0\.0\.1"):
        list(mapped(connected.engine, ranks, pieces_of(root, 6), Problems()))


def test_a_result_that_cannot_be_sent_is_named(connected: Connected, root: Path) -> None:
    """A result that cannot be pickled is the piece's problem."""
    problems = Problems()
    assert list(mapped(connected.engine, _unsendable, pieces_of(root, 1), problems)) == []
    assert "which cannot be sent" in str(problems.kept[0])


def _unsendable(piece: Piece) -> object:
    return threading.Lock()


def test_without_ray_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for where it is not installed, the error says how to install it."""
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r'--engine ray needs ray, of the extra "ray"'):
        engine_of("ray").__enter__()
