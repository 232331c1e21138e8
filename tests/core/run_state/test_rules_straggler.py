"""RunStraggler: ranks that take longer than the others."""

from __future__ import annotations

import math
from statistics import median

import numpy as np
import pytest

from probe.core.naming import OUTSIDE_SECONDS
from probe.core.run_state.rules.straggler import Straggler, stragglers
from tests.core.run_state.run_steps import found, noise, places, rule_of, steps_of

N = 100


def ranks(slow, number=OUTSIDE_SECONDS, world=8):
    """Columns of all ranks, those in ``slow`` times their factor from step 50 to 80."""
    late = (np.arange(N) >= 50) & (np.arange(N) < 80)
    return {
        f"rank__{rank}__{number}": (np.where(late, slow.get(rank, 1), 1) * (1 + noise(N, rank, 0.05))).tolist()
        for rank in range(world)
    }


def judged(columns, **args):
    args = {"window": 20, "warm_up": 10, **args}
    return places(found(rule_of("RunStraggler", **args), steps_of(step_seconds=[2.0] * N, **columns)))


def test_the_function_compares_each_rank_with_the_median_of_the_others():
    """The result is that of the definition, for groups of every size."""
    random = np.random.default_rng(3)
    for world in (2, 3, 4, 5, 8, 9):
        for _ in range(30):
            medians = dict(enumerate(random.lognormal(0, 0.4, world).round(1).tolist()))
            others = {rank: median(v for other, v in medians.items() if other != rank) for rank in medians}
            slow = {rank for rank, value in medians.items() if value > 1.5 * others[rank]}
            result = stragglers(medians)
            assert {each.rank for each in result} == slow
            assert all(each.expected == pytest.approx(others[each.rank]) for each in result)
            assert [each.seconds - each.expected for each in result] == sorted(
                (each.seconds - each.expected for each in result), reverse=True
            )


def test_the_function_leaves_out_nan_and_small_differences():
    """A rank without a number is no rank; with one rank left there is nothing to compare."""
    assert stragglers({0: 1.0, 1: math.nan, 2: 2.0}) == [Straggler(2, 2.0, 1.0)]
    assert stragglers({0: 1.0, 1: math.nan}) == []
    assert stragglers({}) == []
    assert stragglers({0: 0.001, 1: 0.002, 2: 0.001}, least=0.01) == []


def test_the_function_compares_within_groups():
    """The last pipeline stage has more work; within it, one rank is slow."""
    medians = {0: 1.0, 1: 1.0, 2: 1.0, 3: 2.0, 4: 2.1, 5: 4.0}
    assert [each.rank for each in stragglers(medians, groups={0: 0, 1: 0, 2: 0, 3: 1, 4: 1, 5: 1})] == [5]
    assert [each.rank for each in stragglers(medians)] == [5, 4, 3]


def test_ranks_that_take_equally_long_are_silent():
    """Noise of 5 %, and single steps of one rank, are healthy."""
    columns = ranks({})
    assert judged(columns) == []
    columns["rank__3__outside_seconds"] = [10.0 if n % 9 == 0 else 1.0 for n in range(N)]
    assert judged(columns) == []


def test_a_slow_rank_is_found_and_its_end_too():
    """Rank 3 is found when half of the last steps were slow, and is over when half were not."""
    [start, end] = judged(ranks({3: 1.9}))
    assert (start[0], start[2], end[0], end[2]) == (
        "rank/3/outside_seconds", False, "rank/3/outside_seconds", True
    )  # fmt: skip
    assert 58 <= start[1] <= 62
    assert 87 <= end[1] <= 92


def test_several_slow_ranks_are_each_found():
    """Three of eight, as of one node."""
    names = {name for name, _, resolved in judged(ranks({5: 1.8, 6: 1.9, 7: 2.0})) if not resolved}
    assert names == {f"rank/{rank}/outside_seconds" for rank in (5, 6, 7)}


def test_phases_are_compared_where_they_are_configured():
    """A loader that is slow on one rank is found by its phase."""
    columns = ranks({2: 3.0}, "phase__data")
    assert judged(columns) == []
    assert judged(columns, numbers=("phase/data",))[0][0] == "rank/2/phase/data"


def test_a_difference_that_is_little_of_a_step_is_no_finding():
    """Three milliseconds more of a step of 2 s, where the others take one, hold nobody up."""
    columns = {name: [value / 1000 for value in values] for name, values in ranks({3: 4.0}).items()}
    assert judged(columns) == []
    assert judged(columns, share=0.0) != []


def test_a_rank_about_the_limit_is_one_matter():
    """A rank that is 1.6 and 1.3 times as slow in turns is reported once, and over when it is near the others."""
    columns = {f"rank__{rank}__outside_seconds": [1.0] * N for rank in range(4)}
    columns["rank__3__outside_seconds"] = [1.0 if n >= 80 else 1.3 if n // 25 % 2 else 1.6 for n in range(N)]
    assert judged(columns) == [("rank/3/outside_seconds", 9, False), ("rank/3/outside_seconds", 89, True)]


def test_two_numbers_are_two_matters():
    """A rank that is slow in one number and not in the other stays reported."""
    columns = {**ranks({3: 1.9}), **ranks({}, "phase__data")}
    assert len(judged(columns, numbers=(OUTSIDE_SECONDS, "phase/data"))) == 2


def test_a_rank_that_sends_no_more_is_not_judged_by_old_numbers():
    """Names that are no ranks, NaN and missing numbers are left out."""
    columns = ranks({3: 1.9})
    columns["rank__3__outside_seconds"] = [math.nan] * N
    columns["rank__x__outside_seconds"] = [9.0] * N
    columns["rank__4__other"] = [9.0] * N
    assert judged(columns) == []
    columns = ranks({3: 1.9})
    slow = columns["rank__3__outside_seconds"]
    columns["rank__3__outside_seconds"] = [math.nan if n % 2 else value for n, value in enumerate(slow)]
    assert [name for name, _, _ in judged(columns)][:1] == ["rank/3/outside_seconds"]


def test_the_message_names_the_rank_and_the_others():
    """A finding has the rank's median and that of the others."""
    columns = {f"rank__{rank}__outside_seconds": [4.0 if rank == 1 else 1.0] * N for rank in range(4)}
    [finding] = found(rule_of("RunStraggler"), steps_of(step_seconds=[5.0] * N, **columns))
    assert (finding.step, finding.value, finding.expected) == (39, 4.0, 1.0)
    assert finding.message == (
        "rank 1 takes 4 s (outside_seconds, median of the last 40 steps) at step 39; the other ranks take 1 s"
    )
