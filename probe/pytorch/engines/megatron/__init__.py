"""Megatron-Core: tensor and pipeline parallelism, the distributed optimizer."""

from __future__ import annotations

from probe.pytorch.engines.engine import Engine
from probe.pytorch.engines.megatron import groups, model, optimizer

ENGINE = Engine(
    check=model.check,
    homes=model.homes,
    wraps={
        "megatron.core.distributed.data_parallel_base._BaseDataParallel": "module",
        "megatron.core.distributed.distributed_data_parallel.DistributedDataParallel": "module",
        "megatron.core.transformer.module.Float16Module": "module",
    },
    optimizers=optimizer,
    pipelined=model.pipelined,
    groups=groups.named,
)
