"""What core asks where models are wrapped and tensors shared out among processes."""

from __future__ import annotations

from probe.pytorch.exchange import meet
from probe.pytorch.megatron import named
from probe.pytorch.optimizers.acting import acting
from probe.pytorch.wrappers import check_again, pipelined

__all__ = ["acting", "check_again", "meet", "named", "pipelined"]
