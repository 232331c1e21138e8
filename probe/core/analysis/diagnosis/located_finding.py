"""Finding with its position in training."""

from __future__ import annotations

from math import isfinite
from typing import NamedTuple

from probe.core.naming import signal_of
from probe.core.records import Finding, Key
from probe.core.rules import about
from probe.core.rules.causal_order import position, stages

WEIGHTS, FORWARD, BACKWARD, EXCHANGE, REDUCED, STATE, UPDATED = range(7)
"""Phases of a step, as :attr:`probe.core.naming.Signal.phase` counts them."""

Position = tuple[int, int, int, int, int, int]
"""Step, before/during/after its micro steps, micro step, phase, whether it is a weight gradient, row. Ranks that run
the same program have equal positions."""


class Located(NamedTuple):
    """Finding with its position in training."""

    finding: Finding
    began: int
    """First sampled step of the anomaly: earlier than the finding's own if the rule waits for several in a row."""
    pp_stage: int = 0
    head: bool = False
    """True for the first row of numbers of its micro step: the model's own input, or its first layer's output for
    ids."""
    micro_steps: int = 1
    """Number of micro batches of its rank in the step."""
    ranks: tuple[int, ...] = ()
    """Ranks that share the tensor; empty for a whole one."""
    live: bool = False
    """True if only the run itself found it, and its files do not show it."""
    call: int = -1
    """Position in the step's order of execution over all signals, as the run has dumped it; -1 if unknown."""
    until: int = -1
    """Last step at which replicas differ in the signal, for findings about replicas; -1 if unknown."""

    @property
    def rank(self) -> int:
        return self.finding.rank

    @property
    def phase(self) -> int:
        return signal_of(self.finding.signal).phase

    @property
    def position(self) -> Position:
        """Position in the program."""
        finding = self.finding
        weight_gradient = int(finding.signal == "grad_unreduced")
        return *position(self.began, self.phase, self.micro_step), weight_gradient, finding.order

    @property
    def order(self) -> tuple[int, ...]:
        """Sort key for findings of all ranks that puts a cause before its consequences.

        As :attr:`position`; within a phase by virtual and pipeline stage, ascending in the forward and descending after
        it; then by rank.
        """
        *phase, row = self.position
        return *phase, *stages(self.phase, self.finding.key.stage, self.pp_stage), row, self.rank

    @property
    def place(self) -> tuple[int, str, Key]:
        """Row, regardless of its rank."""
        return self.began, self.finding.signal, self.finding.key

    @property
    def chunk(self) -> tuple[int, int]:
        """Piece of a pipelined model: virtual stage and pipeline stage."""
        return self.finding.key.stage, self.pp_stage

    @property
    def micro_step(self) -> int | None:
        """Micro step; None for a row of the whole step."""
        return self.finding.key.micro_step if self.finding.micro_stepped else None

    @property
    def is_non_finite(self) -> bool:
        """True if it is about NaN or Inf."""
        finding = self.finding
        compared = about(finding.rule).compares
        return not compared and (finding.op in ("nans", "infs", "nonfinite") or not isfinite(finding.value))
