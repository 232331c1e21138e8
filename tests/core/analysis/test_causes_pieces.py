"""First causes over pieces of a run: the same bytes as of the whole, by this process and by others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from probe.core.analysis.diagnosis import judge
from probe.core.analysis.diagnosis.analyse import Analysis, analyse
from probe.core.analysis.diagnosis.export import as_json
from probe.core.analysis.engines import engine_of
from probe.core.analysis.engines.workers import LocalEngine
from probe.core.analysis.pieces import Piece
from probe.core.records import Key
from probe.core.storage.duckdb_reader import Connection
from tests.core.analysis import test_causes
from tests.core.analysis.causes_data import bad, everything_after, write_rank, write_run
from tests.required import require

pytestmark = pytest.mark.slow

require("duckdb")

R = TypeVar("R")
AT = 6
RANKS, STEPS = 6, 10


class ShuffledEngine:
    """Pieces in this process, in another order at each call."""

    width = 1

    def __init__(self) -> None:
        self.pieces = 0

    def each(self, function: Callable[[Piece], R], pieces: Iterable[Piece]) -> Iterator[tuple[Piece, R | Exception]]:
        held = list(pieces)
        self.pieces = max(self.pieces, len(held))
        np.random.default_rng(len(held)).shuffle(held)  # type: ignore[arg-type]
        yield from LocalEngine(1).each(function, held)


def replicas(rank: int) -> dict[str, list[int]]:
    return {"data_parallel": [other for other in range(RANKS) if other % 2 == rank % 2]}


def diverging(signal: str, rank: int, step: int, key: Key) -> float | None:
    """A weight of two ranks differs from its replicas', at different steps; a third rank finds NaN."""
    if (signal, key.name) == ("param_origin", "b.weight") and (rank, step >= AT) == (1, True):
        return 1.23456
    if (signal, key.name) == ("param_origin", "a.weight") and (rank, step >= AT + 2) == (5, True):
        return 1.34567
    return bad(("actv", 4, AT + 1, "b.output"))(signal, rank, step, key)


def nan_everywhere(signal: str, rank: int, step: int, key: Key) -> float | None:
    return everything_after(AT, range(RANKS), bad(("actv", 3, AT, "b.output")))(signal, rank, step, key)


def comparable(analysis: Analysis) -> str:
    return json.dumps(as_json(analysis))


@pytest.mark.parametrize(("change", "least"), [(diverging, 4), (nan_everywhere, 20)])
def test_any_number_of_pieces(tmp_path: Path, change: Any, least: int) -> None:
    """4 pieces and one a rank, in shuffled order, give the same JSON as the whole run; so do two processes."""
    write_run(tmp_path, RANKS, STEPS, change, groups=replicas)
    (next(tmp_path.glob("*rank2-*")) / "actv_0-4.csv").open("a").write("not a row\n")
    whole = comparable(analyse(tmp_path))
    assert json.loads(whole)["number"] > 0
    engine = ShuffledEngine()
    assert comparable(analyse(tmp_path, engine=engine, least=least)) == whole
    assert engine.pieces >= min(least, RANKS)
    if change is diverging:  # of several ranks, which different pieces have
        with engine_of("local", 2) as two:
            assert comparable(analyse(tmp_path, engine=two, least=3)) == whole


@pytest.mark.parametrize("change", [diverging, nan_everywhere])
def test_what_matters_of_many_ranks(tmp_path: Path, change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many ranks fewer findings are kept; the stories and the counts are the same."""
    write_run(tmp_path, RANKS, STEPS, change, groups=replicas)
    whole = analyse(tmp_path)
    monkeypatch.setattr(judge, "FEW", RANKS - 1)
    few = analyse(tmp_path)
    assert len(few.findings()) <= len(whole.findings())
    assert few.number == whole.number
    assert [each.text for each in few.diagnoses] == [each.text for each in whole.diagnoses]
    assert [each.incident.by_rank for each in few.diagnoses] == [each.incident.by_rank for each in whole.diagnoses]


def test_a_piece_that_fails_is_named(tmp_path: Path) -> None:
    """The answer is one over fewer ranks, and says so."""
    for rank in range(3):
        write_rank(tmp_path, rank, range(STEPS), world_size=3)

    class FailingEngine(ShuffledEngine):
        """One piece of ranks fails."""

        def each(
            self, function: Callable[[Piece], R], pieces: Iterable[Piece]
        ) -> Iterator[tuple[Piece, R | Exception]]:
            for piece, result in super().each(function, pieces):
                yield piece, (OSError("lost") if piece.ranks == (1,) else result)

    analysis = analyse(tmp_path, engine=FailingEngine(), least=3)
    assert analysis.extent.ranks == (0, 2)
    assert analysis.problems.skipped
    assert any("rank 1: OSError: lost" in line for line in analysis.problems.lines())


@pytest.fixture
def over_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Analyses by the tests of causes over pieces."""

    def over(root: Path, steps: Iterable[int] = (), connection: Connection | None = None) -> Analysis:
        return analyse(root, steps, connection=connection, engine=ShuffledEngine(), least=2)

    monkeypatch.setattr(test_causes, "analyse", over)


ACROSS_RANKS = (
    "a_healthy_run",
    "forward_through_a_pipeline",
    "backward_through_a_pipeline",
    "gradients_of_replicas",
    "the_same_place_on_all_ranks_at_once",
    "a_weight_of_one_rank_is_not_in_anothers_next_forward",
    "a_bad_batch_is_one_ranks",
    "a_lost_peer_and_the_unfinished_step_are_no_cause",
    "nan_through_a_collective_in_the_forward",
    "who_gave_nan_by_its_own_account_comes_first",
    "one_of_three_replicas_differs",
    "how_long_replicas_differ_is_told",
    "ranks_that_are_no_replicas_are_not_compared",
    "pipelines_that_dumps_tell",
    "a_tensor_that_moved_alike_must_remain_so_though_nothing_names_replicas",
)
"""Tests of causes of several ranks, one for each of what ranks have in common: runs of one rank are one piece."""


@pytest.mark.usefixtures("over_pieces")
@pytest.mark.parametrize("name", ACROSS_RANKS)
def test_causes_over_pieces(name: str, tmp_path: Path) -> None:
    """Tests of causes once more, in pieces."""
    getattr(test_causes, f"test_{name}")(tmp_path)
