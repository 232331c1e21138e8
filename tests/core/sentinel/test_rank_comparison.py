"""Comparison of ranks: which sequences of lines are findings, and which are none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pytest

from probe.core.checks.check import CheckFinding
from probe.core.sentinel.rank_comparison import DIFFER, MASKS, SAME, SUMMED, UNLIKE, GroupComparison, RankGroup, Role
from probe.core.sentinel.rank_lines import RankLine

NAMES = ("wte", "blocks.0.ln.weight", "blocks.0.mlp.weight", "head")
Lines = Callable[[int, int], RankLine]


def group(ranks: int = 4, role: Role = "data", split: Sequence[bool] = ()) -> RankGroup:
    return RankGroup(role, tuple(range(ranks)), NAMES, tuple(split))


def found(of: RankGroup, line: Lines, steps: Iterable[int] = range(30)) -> list[CheckFinding]:
    """Findings in lines, which arrive rank after rank, some steps at a time."""
    comparison, findings = GroupComparison(of), list[CheckFinding]()
    every = [*steps]
    for at in range(0, len(every), 7):
        for rank in of.ranks:
            findings += comparison.add(rank, [line(rank, step) for step in every[at : at + 7]])
    return findings


def numbers(step: int, rank: int = 0, spread: float = 0.0) -> np.ndarray:
    """Norms and sums of a step; those of ranks differ by about ``spread``."""
    common = np.random.default_rng(step).lognormal(size=(len(NAMES), 2))
    own = np.random.default_rng([step, rank]).normal(size=(len(NAMES), 2))
    return common * (1 + spread * own)


def healthy(rank: int, step: int) -> RankLine:
    return RankLine(step, 0, 2.0 + 0.1 * rank + 0.01 * step, numbers(step), numbers(step, rank, 0.05))


def test_replicas_of_a_healthy_run_are_no_finding() -> None:
    """Equal reduced gradients, unlike unreduced ones; likewise without the latter, and with a missing gradient."""
    assert found(group(), healthy) == []
    assert found(group(), lambda rank, step: healthy(rank, step)._replace(unreduced=None)) == []

    def sparse(rank: int, step: int) -> RankLine:
        line = healthy(rank, step)
        line.reduced[3] = np.nan
        return line

    assert found(group(), sparse) == []


@pytest.mark.parametrize(("ranks", "blamed"), [(4, (2,)), (2, (0, 1))])
def test_a_replica_that_differs_is_named_with_its_parameters(ranks: int, blamed: tuple[int, ...]) -> None:
    """The rank that is unlike the majority; both of two. Once, when it begins."""

    def drifting(rank: int, step: int) -> RankLine:
        line = healthy(rank, step)
        if rank == min(2, ranks - 1) and step >= 10:
            line.reduced[1:3] *= 1 + 1e-6
        return line

    (finding,) = found(group(ranks), drifting)
    assert (finding.check, finding.grade, finding.ranks) == (DIFFER, "critical", blamed)
    assert (finding.where, finding.since, finding.step) == (("blocks.0.ln.weight", "blocks.0.mlp.weight"), 10, 10)


def test_a_second_episode_is_another_finding() -> None:
    """Each is found once."""
    wrong = {3, 4, 5, 20, 21}

    def line(rank: int, step: int) -> RankLine:
        return healthy(rank, step)._replace(reduced=numbers(step) * (2 if rank == 1 and step in wrong else 1))

    assert [each.since for each in found(group(), line)] == [3, 20]


def test_ranks_with_the_same_unreduced_gradients_see_the_same_data() -> None:
    """Five updates in a row; gradients that are all zero say nothing."""
    same = found(group(2), lambda rank, step: healthy(rank, step)._replace(unreduced=numbers(step)))
    assert [(each.check, each.grade, each.since, each.step) for each in same] == [(SAME, "warning", 0, 4)]
    zero = np.zeros((len(NAMES), 2))
    assert found(group(2), lambda _, step: RankLine(step, 0, 1.0, numbers(step), zero)) == []


PARTS = ("wte.weight", "ln.weight", "up.weight", "up.bias", "norm.weight", "experts.0.weight")
BEGINNING = {"ln.weight": (3.0, 9.0), "norm.weight": (3.0, 9.0)}
"""Norm and sum of nine ones."""


@pytest.mark.parametrize(
    ("own", "talks", "names"),
    [
        ({"up.weight", "up.bias", "experts.0.weight"}, True, ()),  # healthy: parts of one model
        ({*PARTS} - {"norm.weight"}, False, ("wte.weight", "ln.weight")),  # some gradients are the same
        ({*PARTS}, True, ("wte.weight",)),  # none is: the ranks talk, and hold parts
        ({*PARTS}, False, ()),  # programs that have nothing in common but a checkpoint
    ],
)
def test_replicas_of_a_divided_model_with_gradients_of_their_own(
    own: set[str], talks: bool, names: Sequence[str]
) -> None:
    """They begin equal: random numbers, and as many ones as in a norm that is shared. Of ``up`` the weight is divided,
    and its bias begins equal by the same seed, as the expert does."""

    def line(rank: int, step: int) -> RankLine:
        rows = {name: np.random.default_rng([step, n, rank * (name in own)]) for n, name in enumerate(PARTS)}
        begin = [BEGINNING.get(name, (2.0 + n + rank * (name == "up.weight"), 0.5)) for n, name in enumerate(PARTS)]
        reduced = np.array([random.lognormal(size=2) for random in rows.values()])
        return RankLine(step, 0, 2.0 + rank, reduced, None, np.array(begin), talks=talks)

    findings = found(RankGroup("unknown", (0, 1), PARTS, ()), line, range(8))
    assert [(row.check, row.grade, row.where, row.since, row.step) for row in findings] == [
        (DIFFER, "warning", names, 0, 4) for _ in range(bool(names))
    ]


@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize("factor", [1.0, 0.9, 1 / 4])
def test_gradients_of_mean_losses_that_are_summed_are_found(factor: float, mean: bool) -> None:
    """Those that are as long as the gradients of all ranks together; not their mean, nor those of parts of a loss."""

    def summed(rank: int, step: int) -> RankLine:
        own = [np.abs(numbers(step, member, 0.05)) for member in range(4)]
        return RankLine(step, 0, 2.0 + 0.01 * step, factor * sum(own), own[rank], mean=mean)

    findings = found(group(), summed)
    assert [(row.check, row.since, row.step) for row in findings] == [(SUMMED, 0, 4)] * (mean and factor > 0.5)


def test_equal_losses_show_the_same_data_where_gradients_are_not_seen() -> None:
    """To the last digit over ten updates, and not constant."""
    losses = [3.0 - 0.1 * step for step in range(30)]
    (finding,) = found(group(2), lambda _, step: RankLine(step, 0, losses[step], numbers(step), None))
    assert (finding.check, finding.step, finding.ranks) == (SAME, 9, (0, 1))
    assert found(group(2), lambda _, step: RankLine(step, 0, 1.0, numbers(step), None)) == []
    assert found(group(2), lambda _, step: RankLine(step, 0, float("nan"), numbers(step), None)) == []


def test_a_rank_unlike_its_peers_is_named() -> None:
    """Three times their median over ten updates; a fifth more, as in healthy runs, is none."""

    def line(times: float) -> Lines:
        def of(rank: int, step: int) -> RankLine:
            mine = times if rank == 3 and step >= 8 else 1.0
            return healthy(rank, step)._replace(unreduced=numbers(step, rank, 0.01) * mine)

        return of

    (finding,) = found(group(), line(3.5))
    assert (finding.check, finding.ranks, finding.since, finding.step) == (UNLIKE, (3,), 8, 17)
    assert "above their median" in finding.text
    assert "below their median" in found(group(), line(0.2))[0].text
    assert found(group(), line(1.19)) == []
    (both,) = found(
        group(2), lambda rank, step: line(1.0)(rank, step)._replace(unreduced=numbers(step) * (1 + 4 * rank))
    )
    assert both.ranks == (0, 1)


def test_losses_of_small_batches_scatter_without_a_finding() -> None:
    """They leap by more than three times, on one rank and then on another."""

    def scattered(rank: int, step: int) -> RankLine:
        loss = float(np.random.default_rng([step, rank, 5]).chisquare(4))
        return RankLine(step, 0, loss, numbers(step), None)

    assert found(group(), scattered, range(2000)) == []


def test_the_odd_one_of_three_ranks_is_named() -> None:
    """Though it is half of what each of the others is compared with."""
    lines = found(group(3), lambda rank, step: healthy(rank, step)._replace(loss=2.0 if rank else 40.0))
    assert [(each.check, each.ranks) for each in lines] == [(UNLIKE, (0,))]


def test_a_rank_that_leaves_its_usual_ratio_is_named_from_the_first_update_on() -> None:
    """Three of five updates, each further away than any before; what scatters so anyway is none."""

    def scattered(rank: int, step: int, spread: float) -> float:
        return float(np.exp(spread * np.random.default_rng([step, rank, 7]).normal()))

    def line(spread: float) -> Lines:
        def of(rank: int, step: int) -> RankLine:
            mine = 2.5 if rank == 1 and step >= 50 and step % 5 != 2 else 1.0
            return RankLine(step, 0, mine * scattered(rank, step, spread), numbers(step))

        return of

    (finding,) = found(group(4), line(0.02), range(90))
    assert (finding.check, finding.ranks, finding.since, finding.step) == (UNLIKE, (1,), 50, 53)
    assert found(group(4), line(0.7), range(90)) == []


def test_a_rank_whose_loss_is_nothing_is_unlike_its_peers() -> None:
    """Zero has no logarithm."""
    (finding,) = found(group(4), lambda rank, step: healthy(rank, step)._replace(loss=0.0 if rank == 2 else 1.0))
    assert (finding.check, finding.ranks, finding.since) == (UNLIKE, (2,), 0)


def with_values(line: RankLine, values: np.ndarray) -> RankLine:
    return line._replace(values=values)


def test_parameters_of_replicas_that_are_apart_are_found() -> None:
    """From the beginning, or from the update on that made them so; once, though not all are read at each update."""

    def line(start: int) -> Lines:
        def of(rank: int, step: int) -> RankLine:
            values = numbers(step // 5 + 100)
            if rank == 1 and step >= start:
                values[2] *= 1.01
            values[[step % 4, (step + 1) % 4]] = np.nan
            return with_values(healthy(rank, step), values)

        return of

    (finding,) = found(group(), line(0))
    assert (finding.check, finding.grade, finding.ranks, finding.since) == (DIFFER, "critical", (1,), 0)
    assert finding.where == ("blocks.0.mlp.weight",)
    (finding,) = found(group(2), line(12))
    assert (finding.ranks, finding.since) == ((0, 1), 12)
    assert found(group(), line(99)) == []


def test_ranks_without_named_groups_that_average_gradients_must_hold_the_same() -> None:
    """Gradients that are equal to the last digit show it; the finding begins where the values do."""

    def line(apart: int) -> Lines:
        def of(rank: int, step: int) -> RankLine:
            values = numbers(step + 100) * (1 + (0.3 * rank if step >= apart else 0))
            return with_values(healthy(rank, step), values)

        return of

    (finding,) = found(group(2, "unknown"), line(0))
    assert (finding.check, finding.ranks, finding.since, finding.step) == (DIFFER, (0, 1), 0, 2)
    (finding,) = found(group(4, "unknown"), line(20))
    assert (finding.ranks, finding.since, finding.step) == ((0, 1, 2, 3), 20, 20)
    assert found(group(4, "unknown"), line(99)) == []


def test_ranks_without_named_groups_that_part_are_found() -> None:
    """Their gradients were equal over the first updates; ranks that never had anything in common are none."""

    def line(since: int) -> Lines:
        return lambda rank, step: RankLine(step, 0, 1.0, numbers(step, rank, 0.1 if step >= since else 0.0))

    (finding,) = found(group(2, "unknown"), line(11))
    assert (finding.check, finding.since, finding.where) == (DIFFER, 11, NAMES[:3])
    assert found(group(4, "unknown"), line(0)) == []


@pytest.mark.parametrize("role", ["tensor", "unknown"])
def test_gradients_that_one_rank_alone_has_scaled_are_found(role: Role) -> None:
    """Those of replicated parameters have one factor between them, in norm and sum; shards have none."""

    def line(factor: float) -> Lines:
        def of(rank: int, step: int) -> RankLine:
            reduced = numbers(step)
            reduced[2] = numbers(step, rank, 0.3)[2]
            return RankLine(step, 0, 1.0, reduced * (factor if rank else 1.0))

        return of

    (finding,) = found(group(2, role), line(0.25))
    assert (finding.check, finding.ranks, finding.since) == (DIFFER, (0, 1), 0)
    assert finding.where == ("wte", "blocks.0.ln.weight", "head")
    assert finding.evidence["factor"] == pytest.approx(0.25)
    assert found(group(2, role), line(1.0)) == []


def tensor_parallel(rank: int, step: int, drift: Callable[[int], float] = lambda _: 0.0) -> RankLine:
    """A layer norm that all have, and shards."""
    reduced = numbers(step, rank, 0.3)
    reduced[1] = numbers(step)[1] * (1 + rank * drift(step))
    return RankLine(step, 0, 1.0, reduced, None)


@pytest.mark.parametrize("split", [(), (True, False, True, True)], ids=["without marks", "with marks"])
def test_layer_norms_that_drift_apart_over_tensor_parallel_ranks_are_found(split: tuple[bool, ...]) -> None:
    """As BLOOM's; shards, which differ rightly, are no finding."""
    of = group(2, "tensor", split)
    assert found(of, tensor_parallel) == []
    drifting = found(of, lambda rank, step: tensor_parallel(rank, step, lambda at: 1e-3 * max(0, at - 9)))
    assert [(each.check, each.where, each.since) for each in drifting] == [(DIFFER, ("blocks.0.ln.weight",), 10)]
    at_once = found(of, lambda rank, step: tensor_parallel(rank, step, lambda at: 1e-5 * at), range(80))
    assert [each.where for each in at_once] == [("blocks.0.ln.weight",)]


def test_what_is_constant_over_the_first_updates_says_nothing_of_tensor_parallel_ranks() -> None:
    """Such as a bias of zero that is a shard."""

    def frozen(rank: int, step: int) -> RankLine:
        reduced = numbers(step, rank, 0.3)
        reduced[1] = 0.0 if step < 8 else reduced[1]
        return RankLine(step, 0, 1.0, reduced, None)

    assert found(group(2, "tensor"), frozen) == []


def test_optimizers_are_compared_apart_and_incomplete_updates_are_left_out() -> None:
    """Steps that a rank lacks are judged on none."""
    comparison = GroupComparison(group(2))
    for step in range(2000):
        assert comparison.add(0, [RankLine(step, step % 2, 1.0, numbers(step), None)]) == []
    assert comparison.judged == 0
    for step in range(1990, 2000):
        assert comparison.add(1, [RankLine(step, step % 2, 2.0, numbers(step), None)]) == []
    assert comparison.judged == 10


def test_equal_labels_show_the_same_data_where_dropout_makes_other_gradients() -> None:
    """Three batches, whose labels are equal on all ranks and others each time; not the same ones again and again."""

    def line(labels: Callable[[int, int], int]) -> Lines:
        return lambda rank, step: healthy(rank, step)._replace(labels=labels(rank, step))

    (finding,) = found(group(2), line(lambda _, step: max(step - 1, 0)))
    assert (finding.check, finding.since, finding.step, finding.ranks) == (SAME, 0, 4, (0, 1))
    assert found(group(2), line(lambda *_: 5)) == []
    assert found(group(2), line(lambda rank, step: step + 40 * rank)) == []


@pytest.mark.parametrize("first", [1, 9])  # labels show it first, or gradients do
def test_the_same_data_are_one_finding(first: int) -> None:
    """Whatever shows them."""

    def line(_: int, step: int) -> RankLine:
        return healthy(0, step)._replace(labels=max(step - first, 0))

    assert [finding.check for finding in found(group(2), line)] == [SAME]


@pytest.mark.parametrize(
    ("own", "reduces", "is_found"), [(True, True, True), (False, True, False), (True, False, False)]
)
def test_gradients_that_are_reduced_in_vain_are_found(own: bool, reduces: bool, is_found: bool) -> None:
    """Of parameters that begin equal, of which not all are read; ranks that never reduce have nothing in common."""

    def line(rank: int, step: int) -> RankLine:
        values = numbers(0) + rank * (own and step > 0)
        values[2] = np.nan
        return RankLine(step, 0, 2.0 + rank, numbers(step, rank, 0.05 * own), None, values, reduces=reduces)

    findings = found(group(2, "unknown"), line, range(8))
    assert [(row.check, row.grade, row.since, row.step) for row in findings] == [(DIFFER, "warning", 0, 4)] * is_found


@pytest.mark.parametrize(("masks", "labels", "is_found"), [(0, 1, True), (1, 1, False), (0, 0, False)])
def test_masks_that_are_the_same_on_all_ranks_are_noted(masks: int, labels: int, is_found: bool) -> None:
    """Of data-parallel ranks with data of their own."""

    def line(rank: int, step: int) -> RankLine:
        return healthy(rank, step)._replace(masks=7 * step + 1 + masks * rank, labels=9 * step + 1 + labels * rank)

    notes = [row for row in found(group(2), line, range(5)) if row.check == MASKS]
    assert [(row.grade, row.ranks, row.step) for row in notes] == [("note", (0, 1), 2)] * is_found
