"""Findings of a rule, with their messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from probe.core.naming import tag
from probe.core.records import Array, Batch, Finding


class Reporter(NamedTuple):
    """Maker of the findings of one rule on one rank."""

    rule: str
    rank: int
    compared: str
    """Name of the ``expected`` value, such as ``history mean``."""

    def findings(
        self, batch: Batch, op: str, at: npt.NDArray[np.int64], values: Array, expected: Array
    ) -> Iterator[Finding]:
        """Yield a finding for each row ``at`` of ``batch``, in that order.

        Args:
            values: values found, one for each of ``at``.
            expected: values that they were compared with; NaN if none.
        """
        for row, value, reference in zip(at.tolist(), values.tolist(), expected.tolist(), strict=True):
            against = f", {self.compared} {reference}" if reference == reference else ""  # noqa: PLR0124 - NaN is not itself
            where = tag(batch.signal, batch.keys[row], self.rank, batch.micro_stepped)
            yield Finding(
                rule=self.rule,
                signal=batch.signal,
                key=batch.keys[row],
                op=op,
                value=value,
                expected=reference,
                step=batch.step,
                rank=self.rank,
                order=int(batch.order[row]),
                message=f"Rule {self.rule} reports anomaly signal in ('{where}', '{op}') at step {batch.step}, "
                f"current value {value}{against}.",
                micro_stepped=batch.micro_stepped,
            )
