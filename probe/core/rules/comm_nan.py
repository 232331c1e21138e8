"""The rank from which NaN or Inf went to others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from probe.core.fields import Section
from probe.core.records import Batch, Finding
from probe.core.rules.about import About
from probe.core.rules.reporter import Reporter

OP = "nonfinite"
"""What findings call the number of NaN and Inf elements: an op of its own, so that what other rules find in the same
row does not take the place of it."""


class CommNanArgs(Section):
    """NaN and infinity given to other ranks."""


class AnomalyCommNan(About):
    """Reports this rank if it gives NaN or Inf to a collective without having got any from one before.

    NaN travels between ranks only by communication. So of all ranks, the one that is reported is where it began, and
    the others, which have it from there, are silent. A NaN that only comes out of a collective is no finding. Once NaN
    has come out of one, what goes in is taken for its consequence until a step shows none at all.

    What is not heard cannot be judged: in steps that are not sampled, in lines that ``cc_codeline`` leaves out, and in
    what goes past Python, such as the reducer of ``DistributedDataParallel``, NaN passes unseen, and a rank that got it
    there is reported as well. Losses scaled for half precision overflow now and then; that is reported too.
    """

    Args = CommNanArgs
    title = "NaN or Inf given to other ranks"
    finds = "finds the rank from which NaN or infinity went to others (it needs cc_distribution)"
    needs = ((lambda s: s.cc_distribution.enable, "cc_distribution.enable"),)
    collects = frozenset({"collective inputs"})

    def __init__(self, args: CommNanArgs, rank: int, ops: Sequence[str]) -> None:  # noqa: ARG002
        self._got_some = False
        self._reporter = Reporter("AnomalyCommNan", rank, "limit")

    def judge(self, batch: Batch) -> Iterator[Finding]:
        if batch.signal != "other" or not {"nans", "infs"} <= set(batch.columns):
            return
        bad = batch.columns["nans"] + batch.columns["infs"]
        given = np.array([key.part == "pre" for key in batch.keys], dtype=bool)
        got = batch.order[~given & (bad > 0)].min(initial=np.iinfo(np.int64).max)
        at = np.flatnonzero(given & (bad > 0) & (batch.order < got))
        if not self._got_some:
            yield from self._findings(batch, at, bad)
        self._got_some = bool((bad > 0).any())

    def _findings(self, batch: Batch, at: npt.NDArray[np.int64], bad: npt.NDArray[np.float64]) -> Iterator[Finding]:
        at = at[np.argsort(batch.order[at], kind="stable")]
        for found in self._reporter.findings(batch, OP, at, bad[at], np.zeros(len(at))):
            yield found._replace(message=f"{found.message} It came from rank {found.rank}.")
