"""What core asks where models are wrapped and tensors shared out among processes."""

from __future__ import annotations

from probe.pytorch.engines.megatron.groups import named
from probe.pytorch.engines.models import check_again, pipelined
from probe.pytorch.engines.unwrap import acting
from probe.pytorch.gloo import has_store, meet, store

__all__ = ["acting", "check_again", "has_store", "meet", "named", "pipelined", "store"]
