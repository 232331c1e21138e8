"""Comparison of the ranks of a group, from their lines: without talk between them, and without files."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from probe.core.checks.check import CheckFinding
from probe.core.checks.peer_ratios import MASKS, SAME, SUMMED, UNLIKE
from probe.core.sentinel.peer_judges import SameData, SameMasks, SummedGradients, UnlikePeers
from probe.core.sentinel.rank_group import RankGroup, Role
from probe.core.sentinel.rank_lines import RankLine
from probe.core.sentinel.replica_judges import (
    DIFFER,
    EqualReplicas,
    NotReduced,
    PartReplicas,
    ScaledApart,
    TensorReplicas,
    UnnamedReplicas,
)

__all__ = ["DIFFER", "REMEDIES", "SAME", "SUMMED", "UNLIKE", "GroupComparison", "RankGroup", "Role"]

REMEDIES: Mapping[str, str] = {
    DIFFER: "Look for code that changes parameters or gradients on one rank alone (clipping, an update before the "
    "reduction, a model called around its wrapper) and for initial weights that nothing has broadcast, then at that "
    "rank's hardware.",
    SAME: "Give each rank its own part of the data: a DistributedSampler, a shard of the files, a seed with the rank "
    "in it.",
    SUMMED: "Divide the gradients by the number of ranks after they are summed, or reduce them with ReduceOp.AVG.",
    MASKS: "Set a seed with the rank in it, once the model is made.",
    UNLIKE: "Look at that rank's data and at its hardware: the others agree with each other.",
}
"""Advice, by finding."""
MOST_PENDING = 256
"""Updates that wait for the lines of other ranks; of more, the oldest are dropped."""


class _Judge(Protocol):
    def judge(self, step: int, lines: Sequence[RankLine]) -> Iterator[CheckFinding]:
        """Yield the findings in one update of all ranks."""


class GroupComparison:
    """Comparison of the lines of one group. A finding is returned once, until what it is about has ended.

    Args:
        group: two ranks or more.
    """

    def __init__(self, group: RankGroup) -> None:
        self.group = group
        self.judged = 0
        """Updates that were compared."""
        self._pending: OrderedDict[tuple[int, int], dict[int, RankLine]] = OrderedDict()
        self._judges = [*_judges(group)]

    def add(self, rank: int, lines: Sequence[RankLine]) -> list[CheckFinding]:
        """Take further lines of a rank; return the findings in updates of which all ranks' lines are there."""
        findings: list[CheckFinding] = []
        for line in lines:
            waiting = self._pending.setdefault((line.optimizer, line.step), {})
            waiting[rank] = line
            if len(waiting) == len(self.group.ranks):
                del self._pending[line.optimizer, line.step]
                findings += self._compare(line.step, [waiting[member] for member in self.group.ranks])
        while len(self._pending) > MOST_PENDING:
            self._pending.popitem(last=False)
        return findings

    def _compare(self, step: int, lines: Sequence[RankLine]) -> Iterator[CheckFinding]:
        if len({line.reduced.shape for line in lines}) > 1:
            return
        self.judged += 1
        for judge in self._judges:
            yield from judge.judge(step, lines)


def _judges(group: RankGroup) -> Iterator[_Judge]:
    if group.role == "data":
        judges = SameData(group), SameMasks(group), UnlikePeers(group), SummedGradients(group)
        yield from (EqualReplicas(group), *judges)
        return
    if group.role == "tensor":
        yield from (ScaledApart(group), TensorReplicas(group))
    else:
        yield UnnamedReplicas(group, (SameData(group), UnlikePeers(group), SummedGradients(group)))
        yield NotReduced(group)
    if not group.split:
        yield PartReplicas(group)
