"""Comparison of ranks by numbers that must be equal on them: the gradients that an update applies, and the parameters.

Sources of the faults: BLOOM's layer norms, which drifted apart over tensor-parallel ranks
(https://github.com/bigscience-workshop/bigscience/blob/master/train/tr11-176B-ml/chronicles.md); replicas that a bit
flip has set apart (https://arxiv.org/abs/2102.11245); replicas that begin apart, since nothing was broadcast
(https://horovod.readthedocs.io/en/stable/pytorch.html).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from probe.core.checks.check import CheckFinding
from probe.core.checks.streak import Streak
from probe.core.language import message
from probe.core.sentinel.peer_judges import SameData, SummedGradients, UnlikePeers
from probe.core.sentinel.rank_group import RankGroup, deviations, stacked
from probe.core.sentinel.rank_lines import Array, RankLine

DIFFER = "replicas-differ"
"""Name of the findings."""
EQUAL = 1e-9
"""Relative difference of numbers of the same bytes: only the order of a sum may differ."""
EQUAL_SHARE = 1e-6
"""The same for numbers that ranks have computed each for itself."""
ALIKE_AT_FIRST = 1e-3
"""Without marks: largest relative difference of a parameter over the first updates with which it is judged later."""
LEAPS = 10.0
"""Factor by which a later difference of such a parameter must exceed the first ones."""
FIRST_UPDATES = 5
SAME_FACTOR = 1e-5
"""Largest relative difference of two factors that are equal."""
LEAST_FACTOR = 1e-3
"""Least deviation of a factor from 1."""
FEWEST_SCALED = 3
"""Fewest parameters that share a factor: norms and sums of so many do not agree by chance."""
UPDATES_SHARED = 3
"""Updates in a row with equal gradients after which parameters are known to share them."""
STEPS_DIFFER = 1
MOST_NAMED = 3
FEWEST_ONES = 8
"""Numbers of a norm at least, that it is known by its size."""
Mask = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int64]


class Apart:
    """Memory of the parameters whose values differ between ranks: not all are read at each update."""

    def __init__(self, number: int) -> None:
        self.since = np.full(number, -1)
        """Step since which the values of each parameter differ; -1 if they do not."""

    def look(self, step: int, values: Array | None) -> Mask:
        """Take the values of an update, ``ranks x parameters x 2``; return which parameters differ as of now."""
        if values is not None and values.shape[1] == len(self.since):
            differs = deviations(values) > EQUAL_SHARE
            equal = np.isfinite(values).all(axis=(0, 2)) & ~differs
            self.since = np.where(equal, -1, np.where(differs & (self.since < 0), step, self.since))
        return self.since >= 0


class EqualReplicas:
    """Gradients that data-parallel ranks apply, the same bytes on all of them, and the parameters themselves."""

    equal = EQUAL
    peers = message("data-parallel replicas")
    """Ranks of the group, as a finding names them."""

    def __init__(self, group: RankGroup) -> None:
        self._group, self._streak = group, Streak(STEPS_DIFFER)
        self._apart = Apart(len(group.names))

    def judge(self, step: int, lines: Sequence[RankLine]) -> Iterator[CheckFinding]:
        """Yield a finding when ranks begin to differ."""
        tables, values = np.stack([line.reduced for line in lines]), stacked([line.values for line in lines])
        wrong = self._wrong(deviations(tables))
        apart = self._must_equal(self._apart.look(step, values))
        if self._streak.completes(bool(wrong.any() or apart.any()), step):
            if wrong.any() or values is None:
                yield self._finding(step, tables, wrong, message("apply different gradients to"), self.equal)
            else:
                yield self._finding(step, values, apart, message("hold different values of"), EQUAL_SHARE)

    def _wrong(self, parts: Array) -> Mask:
        """Return the mask of the parameters whose gradients differ between ranks and must not, by how far they do."""
        return parts > self.equal

    def _must_equal(self, apart: Mask) -> Mask:
        """Return those of the parameters that differ between ranks and must not."""
        return apart

    def _finding(self, step: int, tables: Array, wrong: Mask, verb: str, equal: float) -> CheckFinding:
        places = np.flatnonzero(wrong)
        names = _names(self._group, places)
        ranks = _unlike_majority(self._group.ranks, tables[:, places], equal)
        text = message(
            "{peers} {verb} {places}, which must be equal",
            peers=self.peers,
            verb=verb,
            places=_listed(names, len(places)),
        )
        norms = tables[:, places[0], 0]
        evidence = {"lowest norm": float(norms.min()), "highest norm": float(norms.max()), "parameters": len(places)}
        return CheckFinding(DIFFER, "critical", names, step, self._streak.since, text, evidence, ranks)


class TensorReplicas(EqualReplicas):
    """Parameters that are not split over a tensor-parallel group: those that are not marked so or, without marks, those
    whose gradients were equal over the first updates, and not constant."""

    equal = EQUAL_SHARE
    peers = message("tensor-parallel ranks")
    """Ranks of the group, as a finding names them."""

    def __init__(self, group: RankGroup) -> None:
        super().__init__(group)
        self._marked = bool(group.split) and len(group.split) == len(group.names)
        self._updates = 0
        self._least: Array = np.full(len(group.names), np.nan)
        self._bound: Array = np.full(len(group.names), np.inf)
        self._first: Array | None = None
        self._moved = np.zeros(len(group.names), bool)

    def judge(self, step: int, lines: Sequence[RankLine]) -> Iterator[CheckFinding]:
        """Yield a finding when ranks begin to differ."""
        if len(lines[0].reduced) != len(self._group.names):
            return
        if not self._marked and self._updates < FIRST_UPDATES:
            self._learn(np.stack([line.reduced for line in lines]))
            return
        yield from super().judge(step, lines)

    def _learn(self, tables: Array) -> None:
        parts = deviations(tables)
        self._least = np.fmax(self._least, parts)
        self._first = tables[0] if self._first is None else self._first
        self._moved |= (tables[0] != self._first).any(axis=1) & ~np.isnan(tables[0]).any(axis=1)
        self._updates += 1
        if self._updates == FIRST_UPDATES:
            alike = (self._least <= ALIKE_AT_FIRST) & self._moved
            self._bound = np.where(alike, np.maximum(EQUAL_SHARE, LEAPS * self._least), np.inf)

    def _wrong(self, parts: Array) -> Mask:
        return parts > (np.where(self._group.split, np.inf, EQUAL_SHARE) if self._marked else self._bound)

    def _must_equal(self, apart: Mask) -> Mask:
        return apart & (~np.array(self._group.split, bool) if self._marked else np.isfinite(self._bound))


class ScaledApart:
    """Gradients of one rank that equal those of another times one factor: one rank alone has clipped or scaled them, or
    each rank has clipped them by another norm."""

    def __init__(self, group: RankGroup) -> None:
        self._group, self._reported = group, False

    def judge(self, step: int, lines: Sequence[RankLine]) -> Iterator[CheckFinding]:
        """Yield a finding when a rank has scaled its gradients."""
        if self._reported:
            return
        scaled = [
            (first, second, match)
            for first, second in pairs(len(lines))
            if (match := scaled_alike(lines[first].reduced, lines[second].reduced)) is not None
        ]
        if scaled:  # what follows differs by more than a factor
            self._reported = True
            first, second, (factor, places) = scaled[0]
            yield self._finding(step, (self._group.ranks[first], self._group.ranks[second]), factor, places)

    def _finding(self, step: int, ranks: tuple[int, int], factor: float, places: Places) -> CheckFinding:
        names = _names(self._group, places)
        text = message(
            "rank {rank} applies the gradients of rank {peer} times {factor:.4g} to {places}: they were equal "
            "before one was clipped or scaled",
            rank=ranks[1],
            peer=ranks[0],
            factor=factor,
            places=_listed(names, len(places)),
        )
        evidence = {"factor": factor, "parameters": float(len(places))}
        return CheckFinding(DIFFER, "critical", names, step, step, text, evidence, ranks)


class PartReplicas:
    """Parameters that begin equal on ranks which hold parts of a model, and to which each rank applies its own gradient
    from the beginning: replicas whose gradients nothing sums or averages.

    They begin with the same random numbers, or are weights of norms, all 1, of the size of another one that gets the
    same gradients on all ranks. Ranks hold parts if some of their gradients are the same and others are not, or if
    other parameters begin with different numbers and they talk. Experts may be others on each rank, and so may biases
    whose weights are divided.
    """

    def __init__(self, group: RankGroup) -> None:
        self._group, self._updates, self._since = group, 0, -1
        self._shared = np.array(["expert" not in name for name in group.names], bool)
        self._apart, self._sizes = self._shared, np.zeros(len(group.names))
        self._random = self._parts = np.zeros(len(group.names), bool)

    def judge(self, step: int, lines: Sequence[RankLine]) -> Iterator[CheckFinding]:
        """Yield a finding after the first updates."""
        tables, values = np.stack([line.reduced for line in lines]), stacked([line.values for line in lines])
        if self._updates == FIRST_UPDATES or tables.shape[1] != len(self._group.names):
            return
        if not self._updates and values is not None:
            self._since = step
            self._look(values)
        self._updates += 1
        parts, present = deviations(tables), (tables[:, :, 0] > 0).all(axis=0)
        self._shared, self._apart = self._shared & present & (parts <= EQUAL), self._apart & (parts > ALIKE_AT_FIRST)
        if self._updates == FIRST_UPDATES:
            talks = self._parts.any() and all(line.talks for line in lines)
            norms = (self._sizes >= FEWEST_ONES) & np.isin(self._sizes, self._sizes[self._shared])
            wrong = self._apart & ((self._random & bool(self._shared.any() or talks)) | norms)
            yield from [self._finding(step, np.flatnonzero(wrong))] if wrong.any() else ()

    def _look(self, values: Array) -> None:
        """Take the numbers of the parameters before the first update."""
        norms, sums = values[:, :, 0], values[:, :, 1]
        equal = (values == values[0]).all(axis=(0, 2))
        ones = equal & (np.abs(norms[0] ** 2 - sums[0]) <= EQUAL * sums[0])
        self._sizes, self._parts = np.where(ones, sums[0], 0.0), np.isfinite(values).all(axis=(0, 2)) & ~equal
        modules = [name.rpartition(".")[0] for name in self._group.names]
        divided = {module for module, is_part in zip(modules, self._parts, strict=True) if is_part}
        self._random = equal & ~ones & (norms[0] > 0) & np.array([module not in divided for module in modules], bool)

    def _finding(self, step: int, places: Places) -> CheckFinding:
        names = _names(self._group, places)
        text = message(
            "each rank applies its own gradients to {listed}, which begin equal on all ranks of a divided model: they "
            "must be summed or averaged over the ranks, or computed of the same",
            listed=_listed(names, len(places)),
        )
        evidence = {"parameters": float(len(places))}
        return CheckFinding(DIFFER, "warning", names, step, self._since, text, evidence, self._group.ranks)


class NotReduced:
    """Gradients that ranks reduce by collectives after the backward, and that are others on each rank nevertheless, of
    parameters that begin equal: nobody waits for the collectives, or their results are not those that are applied."""

    def __init__(self, group: RankGroup) -> None:
        self._group, self._updates = group, 0

    def judge(self, step: int, lines: Sequence[RankLine]) -> Iterator[CheckFinding]:
        """Yield a finding after the first updates, if each of them is so."""
        tables, values = np.stack([line.reduced for line in lines]), stacked([line.values for line in lines])
        if not 0 <= self._updates < FIRST_UPDATES or tables.shape[1] != len(self._group.names):
            return
        reduced = tables.shape[1] and (tables[:, :, 0] > 0).all() and all(line.reduces for line in lines)
        read = np.zeros((1, 0)) if values is None else values[:, np.isfinite(values).all(axis=(0, 2))]
        begins = read.any() and (read == read[0]).all()
        is_met = reduced and (begins or self._updates) and (deviations(tables) > ALIKE_AT_FIRST).all()
        self._updates = self._updates + 1 if is_met else -1
        if self._updates == FIRST_UPDATES:
            names = _names(self._group, np.arange(len(self._group.names)))
            text = message(
                "collectives run between backward and update, and ranks apply different gradients to {listed}, which "
                "began equal",
                listed=_listed(names, len(self._group.names)),
            )
            evidence = {"parameters": float(len(self._group.names))}
            first = step - FIRST_UPDATES + 1
            yield CheckFinding(DIFFER, "warning", names, step, first, text, evidence, self._group.ranks)


class _Pair:
    """Two ranks of an unknown relation: the gradients that they apply show whether they share parameters.

    Gradients that are equal to the last digit, update for update, were averaged or computed of the same: what they are
    applied to must be equal too, and they must stay so.
    """

    def __init__(self, number: int) -> None:
        self.updates = np.zeros(number, np.int64)
        """Updates in a row so far in which the gradients of each parameter were equal, and not always the same."""
        self.apart = Apart(number)
        self._last: Array | None = None
        self._present = np.zeros(number, np.bool_)

    @property
    def all_equal(self) -> bool:
        """True if the gradients of all parameters that have any are equal."""
        return bool(self._present.any() and (self.updates[self._present] >= FIRST_UPDATES).all())

    def look(self, first: RankLine, second: RankLine) -> tuple[Mask, Mask]:
        """Take an update; return which parameters have begun to get different gradients, and which have different
        values, though their gradients are equal."""
        tables = np.stack([first.reduced, second.reduced])
        parts = deviations(tables)
        present = np.isfinite(tables).all(axis=(0, 2)) & (tables[:, :, 0] > 0).all(axis=0)
        self._present |= present
        equal = present & (parts <= EQUAL)
        varies = np.ones_like(equal) if self._last is None else (tables[0] != self._last).any(axis=1)
        self._last = tables[0]
        wrong = (self.updates >= FIRST_UPDATES) & present & (parts > EQUAL_SHARE)
        self.updates = np.where(equal, self.updates + varies, np.where(present & ~wrong, 0, self.updates))
        apart = self.apart.look(first.step, stacked([first.values, second.values]))
        return wrong, apart & equal & (self.updates >= UPDATES_SHARED)


class UnnamedReplicas:
    """Ranks of one launch whose groups nothing names, such as a loop that averages gradients by hand.

    Args:
        of_data: judges of data-parallel ranks, for ranks that have proved to be such.
    """

    def __init__(self, group: RankGroup, of_data: tuple[SameData, UnlikePeers, SummedGradients]) -> None:
        self._group, self._of_data, self._scaled = group, of_data, ScaledApart(group)
        self._pairs = {pair: _Pair(len(group.names)) for pair in pairs(len(group.ranks))}
        self._streak = Streak(STEPS_DIFFER)
        self._waiting: dict[str, CheckFinding] = {}
        """Latest findings about data-parallel ranks, until the ranks have proved to be such."""

    def judge(self, step: int, lines: Sequence[RankLine]) -> Iterator[CheckFinding]:
        """Yield findings about ranks that have something in common."""
        if len(lines[0].reduced) != len(self._group.names):
            return
        yield from self._scaled.judge(step, lines)
        looks = {pair: state.look(lines[pair[0]], lines[pair[1]]) for pair, state in self._pairs.items()}
        wrong = {pair: np.flatnonzero(look[0]) for pair, look in looks.items() if look[0].any()}
        apart = {pair: np.flatnonzero(look[1]) for pair, look in looks.items() if look[1].any()}
        if self._streak.completes(bool(wrong or apart), step):
            yield self._finding(step, wrong or apart, lines, values=not wrong)
        for judge in self._of_data:
            self._waiting |= {finding.check: finding for finding in judge.judge(step, lines)}
        if all(state.all_equal for state in self._pairs.values()):
            yield from self._waiting.values()
            self._waiting.clear()

    def _finding(
        self, step: int, apart: Mapping[tuple[int, int], Places], lines: Sequence[RankLine], values: bool
    ) -> CheckFinding:
        places = np.unique(np.concatenate([*apart.values()]))
        names = _names(self._group, places)
        members = sorted({member for pair in apart for member in pair})
        ranks = tuple(self._group.ranks[member] for member in members)
        listed = _listed(names, len(places))
        since = step
        text = message("ranks apply different gradients to {listed}, which were equal until now", listed=listed)
        if values:
            # that gradients are equal takes some updates to be seen: the values differed before
            since = min(int(self._pairs[pair].apart.since[some].min()) for pair, some in apart.items())
            text = message("ranks apply equal gradients to {listed}, whose values differ", listed=listed)
        table = [lines[member].values if values else lines[member].reduced for member in members]
        norms = [float(rows[places[0], 0]) for rows in table if rows is not None]
        evidence = {"lowest norm": min(norms), "highest norm": max(norms), "parameters": float(len(places))}
        return CheckFinding(DIFFER, "critical", names, step, since, text, evidence, ranks)


def pairs(number: int) -> list[tuple[int, int]]:
    """Return the pairs of ``number`` ranks that are compared: each with the first and with the one before it, so that
    their number does not grow with the square."""
    return sorted({*pairwise(range(number)), *((0, rank) for rank in range(1, number))})


def scaled_alike(reference: Array, other_rank: Array) -> tuple[float, Places] | None:
    """Return the factor from the gradients of one rank to those of another, and the parameters of which norms and sums
    have it; None if too few share one, or if it is 1.

    Numbers of a gradient with one element are left out, whose norm and sum are one number.
    """
    if np.array_equal(reference, other_rank, equal_nan=True):
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        is_one_number = np.abs(np.abs(reference[:, 1]) - reference[:, 0]) <= SAME_FACTOR * reference[:, 0]
        factors = np.where(is_one_number, np.nan, other_rank[:, 0] / reference[:, 0])
        follows = np.abs(other_rank[:, 1] - factors * reference[:, 1]) <= SAME_FACTOR * other_rank[:, 0]
        logs = np.log(factors)
        places = np.flatnonzero(np.isfinite(logs) & follows & (np.abs(logs) >= LEAST_FACTOR))
    places = places[np.argsort(logs[places])]
    logs = logs[places]
    ends = np.searchsorted(logs, logs + SAME_FACTOR, side="right")
    sizes = ends - np.arange(len(logs))
    if not len(logs) or sizes.max() < FEWEST_SCALED:
        return None
    first = int(sizes.argmax())
    return float(np.exp(logs[first])), np.sort(places[first : ends[first]])


def _names(group: RankGroup, places: Places) -> tuple[str, ...]:
    return tuple(group.names[place] for place in places[:MOST_NAMED])


def _listed(names: Sequence[str], number: int) -> str:
    places, more = ", ".join(names), number - len(names)
    return message("{places} and {more} more", places=places, more=more) if more > 0 else places


def _unlike_majority(ranks: Sequence[int], tables: Array, equal: float) -> tuple[int, ...]:
    """Return the ranks whose numbers are not those of more than half of the ranks; all where there is no such half."""
    alike = [[bool((deviations(np.stack([first, second])) <= equal).all()) for second in tables] for first in tables]
    most = max(alike, key=sum)
    if sum(most) * 2 <= len(ranks):
        return tuple(ranks)
    return tuple(rank for rank, same in zip(ranks, most, strict=True) if not same)
