"""Causal order: the position of a value within training.

Every reader of findings sorts by :func:`position`, and adds only keys that distinguish values of one position.
"""

from __future__ import annotations

from probe.core.naming import SIGNALS, signal_of
from probe.core.records import Finding

BEFORE, DURING, AFTER = range(3)
"""Relations of a phase to the micro steps of its training step."""
WEIGHTS = SIGNALS["param_origin"].phase
FORWARD = SIGNALS["actv"].phase

Position = tuple[int, int, int, int]
"""Step; before, during or after its micro steps; micro step, 0 for values of the whole step; phase."""


def position(step: int, phase: int, micro_step: int | None) -> Position:
    """Sort key that puts a cause before its consequences.

    Within a step: weights before the forward; then one micro step after the other, forward before backward; then the
    values of the whole step. Optimizer state is read before the update, so its errors from this step's gradients show
    at the next step.

    Args:
        phase: phase of the signal, as :attr:`probe.core.naming.Signal.phase` counts.
        micro_step: None for values of the whole step.
    """
    if micro_step is not None:
        return step, DURING, micro_step, phase
    return step, BEFORE if phase == WEIGHTS else AFTER, 0, phase


def stages(phase: int, virtual: int, pipeline: int) -> tuple[int, int]:
    """Sort key for stages of a pipelined model within one position: ascending in the forward, later descending."""
    sign = 1 if phase <= FORWARD else -1
    return sign * virtual, sign * pipeline


def causal_order(finding: Finding) -> tuple[int, int, int, int, int]:
    """Sort key for findings of one rank: :func:`position`, then the call id."""
    micro_step = finding.key.micro_step if finding.micro_stepped else None
    return *position(finding.step, signal_of(finding.signal).phase, micro_step), finding.order
