"""Engines, in the order in which they are tried."""

from __future__ import annotations

from probe.pytorch.engines import deepspeed, fsdp1, fsdp2, megatron, pipelining
from probe.pytorch.engines.engine import Engine

ENGINES: dict[str, Engine] = {
    "fsdp1": fsdp1.ENGINE,
    "fsdp2": fsdp2.ENGINE,
    "megatron": megatron.ENGINE,
    "deepspeed": deepspeed.ENGINE,
    "pipelining": pipelining.ENGINE,
}
"""Engines other than torch itself (:mod:`probe.pytorch.engines.native`). To add one, add a line here."""
