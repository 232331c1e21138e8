"""A finding, and where in the course of training it stands."""

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
"""Step, before/during/after its micro steps, micro step, phase, whether it is a weight gradient, row: what ranks that
run the same program have alike."""


class Located(NamedTuple):
    """One finding with all that tells where it stands."""

    finding: Finding
    began: int
    """The first sampled step at which it was so: earlier than the finding's own where a rule waits for several in a
    row."""
    pp_stage: int = 0
    head: bool = False
    """Whether it is about the first row of numbers of its micro step: what the model itself was given, or what its
    first layer makes of ids."""
    micro_steps: int = 1
    """How many micro batches its rank had in the step."""
    ranks: tuple[int, ...] = ()
    """Who share the tensor out; empty for a whole one."""
    live: bool = False
    """Whether only the run itself has found it, in what its files do not tell."""
    call: int = -1
    """Position in the step's order of execution over all signals, as the run has dumped it; -1 if unknown."""
    until: int = -1
    """The last step at which replicas differ in the signal, where that is what was found; -1 if unknown."""

    @property
    def rank(self) -> int:
        return self.finding.rank

    @property
    def phase(self) -> int:
        return signal_of(self.finding.signal).phase

    @property
    def position(self) -> Position:
        """Where in the program."""
        finding = self.finding
        weight_gradient = int(finding.signal == "grad_unreduced")
        return *position(self.began, self.phase, self.micro_step), weight_gradient, finding.order

    @property
    def order(self) -> tuple[int, ...]:
        """Sorts findings of all ranks such that a cause stands before what it causes.

        As :attr:`position`; within a phase up the virtual and pipeline stages in the forward, and down in what comes
        after it; then by rank.
        """
        *phase, row = self.position
        return *phase, *stages(self.phase, self.finding.key.stage, self.pp_stage), row, self.rank

    @property
    def place(self) -> tuple[int, str, Key]:
        """Which row, whatever its rank."""
        return self.began, self.finding.signal, self.finding.key

    @property
    def chunk(self) -> tuple[int, int]:
        """Which piece of a pipelined model: virtual stage and pipeline stage."""
        return self.finding.key.stage, self.pp_stage

    @property
    def micro_step(self) -> int | None:
        """None for what belongs to a step as a whole."""
        return self.finding.key.micro_step if self.finding.micro_stepped else None

    @property
    def is_non_finite(self) -> bool:
        """Whether it is about NaN or Inf."""
        finding = self.finding
        compared = about(finding.rule).compares
        return not compared and (finding.op in ("nans", "infs", "nonfinite") or not isfinite(finding.value))
