"""Rule that names the rank that sent NaN or Inf to others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from probe.core.fields import Section
from probe.core.records import Batch, Finding
from probe.core.rules.about import About
from probe.core.rules.reporter import Reporter

OP = "nonfinite"
"""Op of its findings, the number of NaN and Inf elements: an op of its own, so that findings of other rules about the
same row do not replace it."""


class CommNanArgs(Section):
    """NaN and infinity sent to other ranks."""


class AnomalyCommNan(About):
    """Report this rank if it sends NaN or Inf into a collective without having received any from one before.

    NaN travels between ranks only by communication. So NaN began on the rank that is reported; the others, which
    received it, are silent. A NaN that only comes out of a collective is no finding. Once NaN has come out of one,
    later inputs with NaN are taken for its consequence until a step shows none at all.

    NaN passes unseen in steps that are not sampled, in lines that ``cc_codeline`` leaves out, and in communication
    outside Python, such as that of the reducer of ``DistributedDataParallel``; a rank that received it there is
    reported as well. Losses scaled for half precision overflow now and then; that is reported too.
    """

    Args = CommNanArgs
    title = "NaN or Inf sent to other ranks"
    why = "After a reduction all ranks have the NaN, and none of their numbers shows whose it was."
    source = "https://github.com/facebookresearch/metaseq/tree/main/projects/OPT/chronicles"
    sees = "tensors before and after each collective, by line of code"
    finds = "finds the rank that first sent NaN or infinity to others (it needs cc_distribution)"
    needs = ((lambda s: s.cc_distribution.enable, "cc_distribution.enable"),)
    collects = frozenset({"collective inputs"})

    def __init__(self, args: CommNanArgs, rank: int, ops: Sequence[str]) -> None:  # noqa: ARG002
        self._received_some = False
        self._reporter = Reporter("AnomalyCommNan", rank, "limit")

    def judge(self, batch: Batch) -> Iterator[Finding]:
        if batch.signal != "other" or not {"nans", "infs"} <= set(batch.columns):
            return
        bad = np.nan_to_num(batch.columns["nans"]) + np.nan_to_num(batch.columns["infs"])
        sent = np.array([key.part == "pre" for key in batch.keys], dtype=bool)
        received = batch.order[~sent & (bad > 0)].min(initial=np.iinfo(np.int64).max)
        at = np.flatnonzero(sent & (bad > 0) & (batch.order < received))
        if not self._received_some:
            yield from self._findings(batch, at, bad)
        self._received_some = bool((bad > 0).any())

    def _findings(self, batch: Batch, at: npt.NDArray[np.int64], bad: npt.NDArray[np.float64]) -> Iterator[Finding]:
        at = at[np.argsort(batch.order[at], kind="stable")]
        for finding in self._reporter.findings(batch, OP, at, bad[at], np.zeros(len(at))):
            yield finding._replace(message=f"{finding.message} It came from rank {finding.rank}.")
