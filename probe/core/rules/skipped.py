"""Steps whose update a gradient scaler has skipped: what their values prove."""

from __future__ import annotations

from probe.core.naming import STATE_PHASE, signal_of
from probe.core.records import Batch, Update

IN_TRAINING = 5
"""Skipped updates in a row from which on they count as evidence, once an update has been applied. A scaler halves its
factor at each, so gradients have grown 32 times beyond the range that the last factor left them; a Spike is 30."""
AT_FIRST = 32
"""The same before the first update. The largest factor in use to begin with is 2**32 (Megatron-LM), and 1 is reached
after so many: gradients that are not finite then are not so by scaling."""


def counts(update: Update) -> bool:
    """Return whether values of the forward and backward of a step are evidence: its update is not known to be skipped,
    or so many have been in a row that scaling has failed."""
    return update.outcome != "skipped" or update.skips >= (IN_TRAINING if update.begun else AT_FIRST)


def is_evidence(batch: Batch) -> bool:
    """Return whether a batch may be judged. Parameters and optimizer state are always evidence: a skipped update leaves
    them as they were."""
    return counts(batch.update) or not passes(batch.signal)


def passes(signal: str) -> bool:
    """Return whether a signal belongs to the forward and backward of one step, which leave nothing behind if its
    update is skipped."""
    return 0 < signal_of(signal).phase < STATE_PHASE


def began(batch: Batch, step: int) -> int:
    """Return the step at which the anomaly of a finding began: the first of the updates skipped in a row, if it is
    about values of a skipped step, else ``step``."""
    skips = batch.update.skips
    return min(step, batch.step - skips + 1) if skips and passes(batch.signal) else step
