"""Numbers of whole tensors by two ranks, as threads that meet in memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from probe.core.backend.numpy_moments import moments
from probe.core.distributed.exchange import ROWS
from probe.core.distributed.global_stats import GlobalStats
from probe.core.faults import Faults
from probe.core.histogram import HISTOGRAM, quantile
from probe.core.records import Batch, Coverage, Key

SECONDS = 30.0


class AbsentError(Exception):
    """The other did not come."""


@dataclass
class Place:
    """Channel between two ranks in memory."""

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
        self.received = self.place.exchange(self.rank, said)
        return self

    def gather(self, payload: Any) -> Any:
        self.place.gathered += 1
        return np.stack(self.place.exchange(self.rank, payload))

    def close(self) -> None:
        """Break the meeting place: a rank that waits there fails."""
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


def together(
    each: Any, said: Sequence[str] = ("", ""), ops: Sequence[str] = ("mean", "norm")
) -> tuple[list[Any], list[Faults], Place]:
    """Run ``each(rank, stats)`` on two ranks and return the results."""
    place, faults = Place(), [Faults(), Faults()]
    stats: Any = [GlobalStats(Rank(place, r), "run 0", said[r], ops, SECONDS, faults[r]) for r in (0, 1)]  # type: ignore[arg-type]
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


def test_histograms_add_up() -> None:
    """The quantiles of the whole are those of the counts of both."""

    def added(rank: int, stats: Any) -> Batch:
        batch = batch_of(rank, 2)
        histograms = moments([np.array([x]) for x in batch.columns["sum"]], (HISTOGRAM,), 0.0)
        return stats.add(0, [replace(batch, columns={**batch.columns, HISTOGRAM: histograms})])[0]

    results, faults, _ = together(added, ops=["q50", "histogram"])
    wholes = moments([np.array([0.0, 10.0]), np.array([1.0, 11.0])], (HISTOGRAM,), 0.0)
    for batch in results:
        assert batch.columns["global_q50"].tolist() == quantile(wholes, 0.5).tolist()
        assert batch.columns[HISTOGRAM].sum(axis=1).tolist() == [1, 1], "the own part stays"
    assert [each.counts for each in faults] == [{}, {}]


def test_there_is_room_for_what_comes_first_and_made_for_what_comes_later() -> None:
    """As many rows as there are when they meet fit at once; later ones beyond that are counted, and fit next time."""
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
    """Different steps are not merged, and no rank waits again."""

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


def replicas(*given: Sequence[Batch], assumed: bool = False) -> tuple[list[Any], list[Faults], Place]:
    """Columns that each of two ranks adds for its copy of parameters, a batch a step."""
    place, faults = Place(), [Faults(), Faults()]
    stats: Any = [
        GlobalStats(Rank(place, r), "run 0", "", ["mean"], SECONDS, faults[r], (0, 1), assumed)  # type: ignore[arg-type]
        for r in (0, 1)
    ]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda rank: [stats[rank].add(each.step, [each])[0] for each in given[rank]], (0, 1)))
    return results, faults, place


def copy_of(values: Sequence[float], step: int = 0, signal: str = "param_updated", **changes: Any) -> Batch:
    """Whole parameters, whose sums are ``values``."""
    batch = batch_of(0, len(values), step)
    return Batch(**{**vars(batch), "signal": signal, "coverage": (), "columns": {"sum": np.array(values)}, **changes})


def test_copies_that_differ_are_told_on_both_ranks() -> None:
    """Each step has one exchange; if all agree, nothing is added."""
    mine = [copy_of([1.0, 2.0], 0), copy_of([1.0, 2.0], 1)]
    theirs = [copy_of([1.0, 2.0], 0), copy_of([1.0, np.nextafter(2.0, 3.0)], 1)]
    results, faults, place = replicas(mine, theirs)
    for other, (equal, different) in zip((1.0, 0.0), results, strict=True):
        assert set(equal.columns) == {"sum"}
        assert different.columns["copies"].tolist() == [2, 2]
        assert different.columns["agreeing"].tolist() == [2, 1]
        assert different.columns["differs_from"][1] == other
        assert np.isnan(different.columns["differs_from"][0])
    assert place.gathered == 4
    assert [each.counts for each in faults] == [{}, {}]


def test_only_copies_are_compared() -> None:
    """Gradients may differ; a parameter that one rank alone has, or another part of a tensor, is no copy."""
    parts = [(Coverage((4,), part, (0, 1)), None) for part in ("0:2", "2:4")]
    for mine, theirs in [
        (copy_of([1.0], signal="grad_unreduced"), copy_of([2.0], signal="grad_unreduced")),
        (copy_of([1.0], keys=(Key("stage 0"),)), copy_of([2.0], keys=(Key("stage 1"),))),
    ]:
        results, _, _ = replicas([mine], [theirs])
        assert [set(batch.columns) for (batch,) in results] == [{"sum"}] * 2
    shards = [copy_of([float(rank), 5.0 + rank], coverage=parts[rank]) for rank in (0, 1)]
    results, _, _ = replicas(*([shard] for shard in shards))
    assert [batch.columns["agreeing"].tolist() for (batch,) in results] == [[1, 1]] * 2
    assert [batch.columns["copies"].tolist() for (batch,) in results] == [[1, 2]] * 2


def test_a_rank_at_another_step_ends_the_comparison() -> None:
    """The comparison ends, as do the numbers of whole tensors."""
    results, faults, place = replicas([copy_of([1.0], n) for n in (0, 1, 2)], [copy_of([2.0], n) for n in (0, 5, 6)])
    for first, second, third in results:
        assert "agreeing" in first.columns
        assert set(second.columns) == set(third.columns) == {"sum"}
    assert place.gathered == 4
    assert [each.counts for each in faults] == [{"global statistics: RuntimeError": 1}] * 2


def test_copies_for_which_there_was_no_room_are_compared_in_the_next_step() -> None:
    """All that came when they met fits; of many more a step later, those that do, and all of them after that."""
    many, odd = 20 * ROWS, 20 * ROWS - 1
    mine = [copy_of([1.0] * ROWS, 0), *(copy_of([1.0] * many, step) for step in (1, 2))]
    theirs = [copy_of([1.0] * ROWS, 0), *(copy_of([1.0] * odd + [2.0], step) for step in (1, 2))]
    results, faults, _ = replicas(mine, theirs)
    for first, second, third in results:
        assert set(first.columns) == set(second.columns) == {"sum"}
        assert third.columns["copies"].tolist() == [2] * many
        assert np.flatnonzero(third.columns["agreeing"] == 1).tolist() == [odd]
    assert [each.counts for each in faults] == [{}, {}]


def test_assumed_copies_count_once_they_were_equal_while_they_changed() -> None:
    """Rows of ranks that nothing names replicas: parts of a tensor never count, nor do parts that are equal because
    they do not change, or at first alone; a row that moved alike for five changes does, whatever comes later."""
    steps = range(9)
    mine = [copy_of([1.0 + n, 5.0, 2.0 + n * (n > 1), 3.0 + n], n) for n in steps]
    theirs = [copy_of([7.0 + n, 5.0 + (n > 6), 2.0 + 2 * n * (n > 1), 3.0 + n + (n > 6)], n) for n in steps]
    for batches in replicas(mine, theirs, assumed=True)[0]:
        differing = [np.flatnonzero(b.columns["agreeing"] < b.columns["copies"]).tolist() for b in batches[7:]]
        assert [set(batch.columns) for batch in batches[:7]] == [{"sum"}] * 7
        assert differing == [[3], [3]]
        assert batches[7].columns["differs_from"][3] in (0.0, 1.0)
