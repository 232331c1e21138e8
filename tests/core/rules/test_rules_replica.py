"""Replicas that should be equal and are not: the comparison, the digests, and the rule's findings."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from probe.core.distributed.replicas import digests
from probe.core.records import Key
from probe.core.rules.replica import AGREEING, COPIES, OTHER, AnomalyReplica, odd_ones, replicated
from tests.core.rules.rule_batches import W, batch_of

nan = math.nan
SAME = {"min": -1.0, "max": 2.0, "norm": 3.0}


def ranks(**changed):
    """Four ranks with the same numbers but for those given, such as ``r2={"max": 5.0}``."""
    return {n: SAME | changed.get(f"r{n}", {}) for n in range(4)}


def test_equal_numbers_are_no_split():
    """NaN is equal to NaN, Inf to Inf, and 0 to -0; a rank alone, or none, has no other to differ from."""
    assert odd_ones(ranks()) is None
    assert odd_ones({rank: {"max": nan, "min": -math.inf} for rank in range(3)}) is None
    assert odd_ones({0: {"max": 0.0}, 1: {"max": -0.0}}) is None
    assert odd_ones({3: SAME}) is None
    assert odd_ones({}) is None


def test_the_odd_one_out_of_four_is_named():
    """The result has the number in which it differs first, its value and the majority's."""
    split = odd_ones(ranks(r2={"max": 2.5, "norm": 4.0}))
    assert (split.ranks, split.majority, split.number) == ((2,), (0, 1, 3), "max")
    assert (split.values, split.expected) == ((2.5,), 2.0)
    assert split.text == "rank 2 differs from ranks 0,1,3"


def test_two_of_five_are_odd_even_if_they_differ_from_each_other():
    """More than half agree."""
    rows = {n: {"norm": value} for n, value in enumerate([1.0, 7.0, 1.0, nan, 1.0])}
    split = odd_ones(rows)
    assert (split.ranks, split.majority, split.expected) == ((1, 3), (0, 2, 4), 1.0)
    assert split.values[0] == 7.0
    assert math.isnan(split.values[1])
    assert split.text == "ranks 1 and 3 differ from ranks 0-4:2"


def test_between_two_nobody_is_right():
    """And neither between two pairs, nor among three that all differ."""
    split = odd_ones({4: {"norm": 1.0}, 6: {"norm": 2.0}})
    assert (split.ranks, split.majority, split.values) == ((4, 6), (), (1.0, 2.0))
    assert math.isnan(split.expected)
    assert split.text == "between ranks 4 and 6"
    assert odd_ones(ranks(r0={"max": 5.0}, r3={"max": 5.0})).ranks == (0, 1, 2, 3)
    assert odd_ones({n: {"norm": float(n)} for n in range(3)}).text == "between ranks 0-2"


def test_only_what_all_ranks_have_is_compared():
    """A rank whose file has fewer columns is compared by those."""
    assert odd_ones({0: {"norm": 1.0, "max": 3.0}, 1: {"norm": 1.0}}) is None
    assert odd_ones({0: {"norm": 1.0, "max": 3.0}, 1: {"max": 4.0}}).number == "max"


@pytest.mark.parametrize(("tolerance", "differ"), [(0.0, True), (1e-12, True), (1e-6, False)])
def test_tolerance_is_relative(tolerance, differ):
    """A part in 10 millions is a difference unless it is tolerated; NaN against a number, and Inf, always are."""
    rows = {0: {"norm": 1e20}, 1: {"norm": 1e20 * (1 + 1e-7)}}
    assert (odd_ones(rows, tolerance) is not None) is differ
    assert odd_ones({0: {"norm": nan}, 1: {"norm": 1.0}}, tolerance) is not None
    assert odd_ones({0: {"norm": math.inf}, 1: {"norm": 1.0}}, tolerance) is not None
    assert odd_ones({0: {"norm": math.inf}, 1: {"norm": -math.inf}}, tolerance) is not None


def test_parameters_and_optimizer_state_are_replicated():
    """Activations, gradients before and after reduction, and tensors of communication are not compared."""
    names = ("param_origin", "param_updated", "exp_avg", "momentum_buffer", "actv", "actv_grad", "other")
    assert [replicated(name) for name in (*names, "grad_unreduced", "grad_reduced")] == [True] * 4 + [False] * 5


# Digests


def test_a_digest_changes_with_the_last_bit_of_any_moment():
    """And is the same for the same numbers, for NaN of all kinds, and for both zeros."""
    tensors = {Key(f"{n}"): np.random.default_rng(n).normal(size=9) for n in range(20)}
    plain = digests(batch_of(tensors))
    assert len(set(plain.tolist())) == 20
    assert digests(batch_of(tensors)).tolist() == plain.tolist()
    for name in ("min", "max", "sum", "sumsq", "m2"):
        batch = batch_of(tensors)
        batch.columns[name][7] = np.nextafter(batch.columns[name][7], 9.0)
        assert (digests(batch) != plain).nonzero()[0].tolist() == [7]
    zeros, other = batch_of({W: np.zeros(3)}), batch_of({W: -np.zeros(3)})
    other.columns["max"][:] = -0.0
    assert digests(zeros).tolist() == digests(other).tolist()
    first, second = batch_of({W: np.array([nan])}), batch_of({W: np.array([nan])})
    second.columns["max"].view(np.uint64)[:] ^= 1
    assert digests(first).tolist() == digests(second).tolist()


def test_moments_that_swap_their_places_give_another_digest():
    """An example is minus the minimum for the maximum."""
    one, other = batch_of({W: np.array([-1.0, 2.0])}), batch_of({W: np.array([-2.0, 1.0])})
    assert digests(one)[0] != digests(other)[0]


# The rule


def compared(copies, agreeing, other, step=0):
    """A batch of two parameters, the second of which is the one compared."""
    batch = batch_of({Key("fine"): np.ones(2), W: np.full(2, 3.0)}, step, signal="param_updated")
    batch.columns.update({COPIES: np.array([copies] * 2), AGREEING: np.array([copies, agreeing])})
    batch.columns[OTHER] = np.array([nan, other])
    return batch


def rule():
    return AnomalyReplica(SimpleNamespace(), 5, ("norm", "max"))


@pytest.mark.parametrize(
    ("copies", "agreeing", "reported"),
    [
        (4.0, 4.0, 0),
        (4.0, 3.0, 0),
        (4.0, 2.0, 1),
        (4.0, 1.0, 1),
        (2.0, 1.0, 1),
        (3.0, 2.0, 0),
        (0.0, 0.0, 0),
        (1.0, 0.0, 0),
    ],
)
def test_a_rank_reports_itself_unless_most_agree_with_it(copies, agreeing, reported):
    """One of four, two of four, one of two; neither three of four nor two of three, nor with fewer than two
    received."""
    assert len(list(rule().judge(compared(copies, agreeing, 0.0)))) == reported


def test_what_stays_different_is_reported_when_it_begins():
    """Once; again if it was healed, and after a rollback."""
    judge, steps = rule(), []
    for step, agreeing in [(0, 4.0), (1, 1.0), (2, 1.0), (3, 4.0), (4, 1.0), (2, 1.0)]:
        steps += [f.step for f in judge.judge(compared(4.0, agreeing, 0.0, step))]
    assert steps == [1, 4, 2]


def test_the_finding_names_who_differs():
    """The rank itself, another, the row, and a number of it."""
    (found,) = rule().judge(compared(4.0, 1.0, 2.0, 7))
    assert (found.rank, found.key, found.op, found.step) == (5, W, "replica_norm", 7)
    assert found.value == pytest.approx(math.sqrt(18))
    assert found.message.endswith("Rank 5 differs from rank 2; of 4 replicas 1 has these numbers.")


def test_batches_that_nobody_has_compared_are_left_alone():
    """Without global_stats the rule is silent."""
    assert not list(rule().judge(batch_of({W: np.ones(3)}, signal="param_updated")))


def test_a_row_of_a_file_without_the_columns_of_replicas_is_not_judged():
    """Those of the other rows still count, and a lasting difference is reported when it begins."""
    rule = AnomalyReplica(AnomalyReplica.Args(), 1, ("norm",))
    moments = batch_of({W: np.ones(3), Key("b"): np.ones(2)}, ops=("norm",), signal="param_updated")
    cells = {COPIES: [2.0, math.nan], AGREEING: [1.0, math.nan], OTHER: [0.0, math.nan]}
    found = []
    for step in range(3):
        columns = dict(moments.columns) | {name: np.array(values) for name, values in cells.items()}
        absent = dict.fromkeys(cells, np.array([False, True]))
        found += rule.judge(replace(moments, step=step, columns=columns, absent=absent))
    assert [(finding.step, finding.key) for finding in found] == [(0, W)]
