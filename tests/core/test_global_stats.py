"""What ranks know together of whole tensors: two of them as threads, which meet in memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from probe.core.faults import Faults
from probe.core.global_stats import GlobalStats
from probe.core.records import Batch, Coverage, Key
from probe.core.tables import ROWS

SECONDS = 5.0


class AbsentError(Exception):
    """The other did not come."""


@dataclass
class Place:
    """Where two ranks exchange arrays."""

    barrier: threading.Barrier = field(default_factory=lambda: threading.Barrier(2))
    given: dict[int, Any] = field(default_factory=dict)
    gathered: int = 0

    def exchange(self, rank: int, what: Any) -> list[Any]:
        self.given[rank] = what
        try:
            self.barrier.wait(SECONDS)
        except threading.BrokenBarrierError:
            raise AbsentError from None
        both = [self.given[0], self.given[1]]
        with suppress(threading.BrokenBarrierError):  # by one that has both already, and has left
            self.barrier.wait(SECONDS)
        return both


class Rank:
    """Answers what is asked of a framework where tensors are shared out."""

    def __init__(self, place: Place, rank: int) -> None:
        self.place, self.rank = place, rank

    def meet(self, ranks: Sequence[int], where: str, said: bytes, seconds: float) -> Rank:
        self.heard = self.place.exchange(self.rank, said)
        return self

    def gather(self, payload: Any) -> Any:
        self.place.gathered += 1
        return np.stack(self.place.exchange(self.rank, payload))

    def close(self) -> None:
        """Breaks the place: who waits there does so in vain."""
        self.place.barrier.abort()


def batch_of(rank: int, rows: int, step: int = 0) -> Batch:
    """``rows`` tensors of two elements, of which each rank has one."""
    values = np.arange(rows) + 10.0 * rank
    return Batch(
        signal="grad_reduced",
        step=step,
        keys=tuple(Key(f"w{i}") for i in range(rows)),
        shapes=((1,),) * rows,
        dtypes=("float32",) * rows,
        order=np.arange(rows),
        columns={"sum": values, "sumsq": values**2},
        coverage=(Coverage((2,), f"{rank}:{rank + 1}", (0, 1)),) * rows,
    )


def together(each: Any, said: Sequence[str] = ("", "")) -> tuple[list[Any], list[Faults], Place]:
    """What ``each(rank, stats)`` gives on two ranks."""
    place, faults = Place(), [Faults(), Faults()]
    stats: Any = [GlobalStats(Rank(place, r), 0, said[r], ["mean", "norm"], SECONDS, faults[r]) for r in (0, 1)]  # type: ignore[arg-type]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda rank: each(rank, stats[rank]), (0, 1)))
    return results, faults, place


def test_wholes_are_those_of_both() -> None:
    results, faults, place = together(lambda rank, stats: stats.add(0, [batch_of(rank, 3)])[0])
    for rank, batch in enumerate(results):
        assert batch.columns["merged"].tolist() == [1, 1, 1]
        assert batch.columns["global_mean"].tolist() == [5, 6, 7]
        assert batch.columns["global_norm"] == pytest.approx(np.hypot(np.arange(3), np.arange(3) + 10))
        assert batch.columns["sum"].tolist() == [x + 10 * rank for x in range(3)]
    assert place.gathered == 2
    assert [each.counts for each in faults] == [{}, {}]


def test_there_is_room_for_what_comes_first_and_made_for_what_comes_later() -> None:
    """As many rows as there are when they meet fit at once; what is too much after that is told, and fits next time."""
    first, later = 3 * ROWS, 20 * ROWS

    def steps(rank: int, stats: Any) -> list[int]:
        sizes = (first, later, later)
        found = [stats.add(step, [batch_of(rank, size, step)])[0] for step, size in enumerate(sizes)]
        return [int(batch.columns["merged"].sum()) for batch in found]

    (one, other), faults, _ = together(steps)
    assert one == other
    assert one[0] == first
    assert 2 * first <= one[1] < later
    assert one[2] == later
    assert [each.counts for each in faults] == [{}, {}]


def test_ranks_at_different_steps_part() -> None:
    """Nothing is merged of steps that are not the same, and nobody waits again."""

    def steps(rank: int, stats: Any) -> list[Batch]:
        return [stats.add(step, [batch_of(rank, 2, step)])[0] for step in (0, 1 + rank, 3)]

    results, faults, place = together(steps)
    for first, second, third in results:
        assert first.columns["merged"].tolist() == [1, 1]
        assert second.columns["merged"].tolist() == [0, 0]
        assert np.isnan(second.columns["global_norm"]).all()
        assert "merged" not in third.columns
    assert place.gathered == 4
    assert [each.counts for each in faults] == [{"global statistics: RuntimeError": 1}] * 2


def test_ranks_with_other_configurations_do_not_exchange_anything() -> None:
    results, faults, place = together(lambda rank, stats: stats.add(0, [batch_of(rank, 2)])[0], ("a", "b"))
    assert [batch.columns["merged"].tolist() for batch in results] == [[0, 0], [0, 0]]
    assert place.gathered == 0
    assert [each.counts for each in faults] == [{"global statistics: ValueError": 1}] * 2


def test_terms_of_a_sum_are_not_merged() -> None:
    def each(rank: int, stats: Any) -> Batch:
        batch = batch_of(rank, 1)
        terms = (Coverage((1,), f"{rank}/2", (0, 1), term=True),)
        return stats.add(0, [Batch(**{**vars(batch), "coverage": terms})])[0]

    results, _, place = together(each)
    assert [batch.columns["merged"].tolist() for batch in results] == [[0], [0]]
    assert place.gathered == 0


def test_what_is_whole_already_needs_nobody() -> None:
    def each(rank: int, stats: Any) -> Batch:
        shared, whole = batch_of(rank, 2), (None, batch_of(rank, 2).coverage[1])
        return stats.add(0, [Batch(**{**vars(shared), "coverage": whole})])[0]

    results, _, _ = together(each)
    for rank, batch in enumerate(results):
        assert batch.columns["merged"].tolist() == [1, 1]
        assert batch.columns["global_mean"].tolist() == [10.0 * rank, 6.0]
