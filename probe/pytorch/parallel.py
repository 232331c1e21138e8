"""What core asks where models are wrapped and tensors shared out among processes."""

from __future__ import annotations

from probe.pytorch.exchange import has_store, meet, store
from probe.pytorch.megatron import named
from probe.pytorch.optimizers.acting import acting
from probe.pytorch.wrappers import check_again, pipelined

__all__ = ["acting", "check_again", "has_store", "meet", "named", "pipelined", "store"]
