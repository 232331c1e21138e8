"""Rule about outputs of modules that are zero."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from pydantic import Field as Argument

from probe.core.fields import Integer, Number, Section
from probe.core.moments import numels
from probe.core.records import Batch, Finding
from probe.core.rules.about import About, has_op
from probe.core.rules.history import Field, History, measures
from probe.core.rules.reporter import Reporter

FEW = 16
"""Elements below which an output may be zero for good reason: a penalty that is not due, a flag."""


class DeadArgs(Section):
    """Outputs of modules that are zero. Needs the op zeros and xy_distribution."""

    limit: Number = Argument(0.999, gt=0, le=1)
    """Fraction of an output's elements below eps from which it counts as zero."""
    steps: Integer = Argument(5, ge=1, le=10_000)
    """Number of samples in a row that must be zero before an output is reported, and of earlier samples that must have
    been different. An output whose elements are all zero from its first sample on is reported as well."""


class AnomalyDead(About):
    """Report a module's output of which ``args.limit`` or more is zero in ``args.steps`` samples in a row, once.

    It must have been different before, in as many samples; or all of it must have been zero from the start. So a module
    that always returns sparse tensors (one-hot codes, the dispatch masks of experts) is not reported, and neither is
    one that starts at zero and moves, such as an adapter with a zero second matrix. Gradients, parameters and inputs
    are not judged: rows of an embedding that no token uses, masks and one-hot inputs are zero in healthy runs.

    The op ``zeros`` must be collected: it counts magnitudes below ``eps``.
    """

    Args = DeadArgs
    title = "Dead output"
    why = "No gradient passes through a unit that is off for every input."
    source = "https://arxiv.org/abs/1903.06733"
    sees = "the share of zeros of each module's output"
    kind = "dead"
    finds = "finds outputs that are zero"
    needs = (
        (lambda s: s.xy_distribution and not s.backward_only, "xy_distribution without backward_only"),
        (lambda s: has_op(s, "zeros"), "the op zeros"),
    )
    by_default = True

    def __init__(self, args: DeadArgs, rank: int, ops: Sequence[str]) -> None:
        self._limit: float = args.limit
        self._steps: int = args.steps
        self.history = History(
            [op for op in ("zeros",) if op in ops], {"streak": Field(0, np.int64), "alive": Field(0, np.int64)}
        )
        self._reporter = Reporter("AnomalyDead", rank, "limit")

    def judge(self, batch: Batch) -> Iterator[Finding]:
        if batch.signal != "actv":
            return
        readings = self.history.read(batch)
        outputs = np.array([key.part.startswith("output") for key in batch.keys], dtype=bool)
        judged = outputs & measures(batch.dtypes) & (numels(batch.shapes) >= FEW)
        readings = readings.where(judged[readings.at])
        off = readings.values >= self._limit
        streak, alive = self.history.of("streak"), self.history.of("alive")
        streak[readings.slots] = np.where(off, streak[readings.slots] + 1, 0)
        alive[readings.slots] += ~off
        was_alive = alive[readings.slots] >= self._steps
        dead = readings.where((streak[readings.slots] == self._steps) & (was_alive | (readings.values == 1)))
        yield from self._reporter.findings(batch, "zeros", dead.at, dead.values, np.full(len(dead.at), self._limit))
