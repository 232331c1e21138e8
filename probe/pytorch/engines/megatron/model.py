"""Models of Megatron-Core: gradients are added up in ``main_grad``, and parameters may be split over ranks.

Its data-parallel wrapper moves each backward's gradient from ``grad`` into ``main_grad``, a view of a buffer that is
reduced in place. The buffer holds this rank's own sum until the reduction begins. The method that begins it has no hook
(Megatron-Core 0.16), and is replaced on its class while there are listeners.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from probe.core.backend.patch import Shared, Undo
from probe.core.backend.protocols import Guard, Remove, Shard
from probe.core.door import compiling, passage, replace
from probe.core.records import Coverage
from probe.pytorch.engines.engine import Listen, Parameter
from probe.pytorch.engines.megatron.groups import here, is_a, tensor_ranks
from probe.pytorch.hook_handles import on_accumulated, on_own

MODULE = "megatron.core.transformer.module.MegatronModule"
OWN_FSDP = (
    "megatron.core.distributed.fsdp.mcore_fsdp_adapter.FullyShardedDataParallel",
    "megatron.core.distributed.custom_fsdp.fully_sharded_data_parallel.FullyShardedDataParallel",
)
WRAPPER = "megatron.core.distributed.distributed_data_parallel.DistributedDataParallel"
BUFFERS = "megatron.core.distributed.param_and_grad_buffer"
NORMS_OF_HEADS = ("q_layernorm", "k_layernorm")
"""Names of norms of which each tensor-parallel rank has the gradient of its own heads; Megatron adds these up."""
FUSED = (
    "gradient_accumulation_fusion adds a weight's gradient to main_grad in the kernel that computes it, so that no "
    "micro batch's own gradient exists; with monitor_mbs_grad: false the step's sum is recorded"
)

_listening: dict[int, list[Callable[[], None]]] = {}
"""Listeners to the reduction of each parameter, by its identity."""


def check(model: torch.nn.Module) -> None:
    """Refuse Megatron's own FSDP, and buffers that differ from those known here.

    Raises:
        ValueError: with the remedy.
    """
    for name, module in model.named_modules() if here() else ():
        if is_a(module, WRAPPER) and not all(_known(buckets) for buckets in getattr(module, "bucket_groups", [None])):
            raise ValueError(
                f"set_monitor: module {name!r}: expected Megatron-Core 0.12 to 0.16, whose DistributedDataParallel has "
                f"bucket_groups with buckets and start_grad_sync; got {sys.modules['megatron.core'].__version__}"
            )
        if is_a(module, *OWN_FSDP):
            raise ValueError(
                f"set_monitor: module {name!r} is wrapped by Megatron's own FSDP, whose gradients and optimizer state "
                "cannot be read; use DistributedDataParallel with use_distributed_optimizer, or torch's FSDP2"
            )


def _known(buckets: Any) -> bool:
    parts = all(hasattr(buckets, name) for name in ("buckets", "grad_reduce_handle", "start_grad_sync"))
    return parts and all(hasattr(bucket, "params_list") for bucket in buckets.buckets)


def pipelined(model: torch.nn.Module) -> bool:
    """Return whether Megatron's schedules run ``model`` as a stage of a pipeline."""
    config = getattr(model, "config", None)
    return is_a(model, MODULE) and getattr(config, "pipeline_model_parallel_size", 1) > 1


def homes(model: torch.nn.Module) -> Iterator[tuple[Parameter, MegatronHome]]:
    """Yield parameters that are split, or whose gradients are added up in Megatron's buffers, with their homes."""
    if not here():
        return
    heads = getattr(getattr(model, "config", None), "qk_layernorm", False)
    for name, module in model.named_modules():
        by_head = heads and any(norm in name for norm in NORMS_OF_HEADS)
        for parameter in module.parameters(recurse=False):
            ranks = tensor_ranks(parameter, module) if hasattr(parameter, "tensor_model_parallel") else []
            added = by_head or getattr(parameter, "sequence_parallel", False)
            sequence = tensor_ranks(parameter, module) if added else []
            if buffered(parameter) or len(ranks) > 1:
                yield parameter, MegatronHome(parameter, ranks, sequence)


def buffered(parameter: Parameter) -> bool:
    """Return whether Megatron adds up the gradients of ``parameter`` in ``main_grad``."""
    return hasattr(parameter, "grad_added_to_main_grad") and isinstance(
        getattr(parameter, "main_grad", None), torch.Tensor
    )


class MegatronHome:
    """Home of one parameter of Megatron.

    Args:
        ranks: the ranks among which the parameter may be split.
        sequence: the ranks each of which has a term of its gradient until Megatron has added them up (sequence
            parallelism, norms of queries and keys).
    """

    def __init__(self, parameter: Parameter, ranks: list[int], sequence: list[int]) -> None:
        self.coverage = _split(parameter, ranks)
        self._term = _term(parameter, sequence)

    def on_gradient(self, parameter: Any, listen: Listen, *, own: bool, main_grad: bool, guard: Guard) -> Remove:
        """Listen to this backward's gradient when it arrives, or to the step's sum when its reduction begins."""

        def arrived(gradient: torch.Tensor) -> None:
            if getattr(parameter, "grad_added_to_main_grad", False):
                listen(None)
                raise LookupError(FUSED)
            listen(self._fed(parameter, gradient))

        def accumulated(_: Parameter) -> None:
            total: Any = getattr(parameter, "main_grad", None) if main_grad else None
            listen(self._fed(parameter, parameter.grad if total is None else total))

        if own:
            return on_own(parameter, arrived, guard)
        if buffered(parameter):
            return _on_reduction(parameter, guard(lambda: listen(self._fed(parameter, parameter.main_grad))))
        return on_accumulated(parameter, guard(accumulated))

    def piece(self, parameter: Parameter, tensor: torch.Tensor) -> torch.Tensor | Shard:  # noqa: ARG002
        """Return ``tensor`` as this rank's part of the whole that is split."""
        return tensor if self.coverage is None else Shard(tensor, self.coverage)

    def leaf(self, parameter: Parameter) -> torch.Tensor:
        """Return the parameter itself."""
        return parameter

    def _fed(self, parameter: Parameter, gradient: torch.Tensor) -> torch.Tensor | Shard:
        """Return ``gradient``, which this rank passes to the reduction, with its coverage."""
        return self.piece(parameter, gradient) if self._term is None else Shard(gradient, self._term)


def _split(parameter: Any, ranks: list[int]) -> Coverage | None:
    """Return this rank's part of a parameter that is split over ``ranks``."""
    if len(ranks) < 2 or not getattr(parameter, "tensor_model_parallel", False):
        return None
    dim, stride = parameter.partition_dim, getattr(parameter, "partition_stride", 1)
    shape = [size * len(ranks) if i == dim else size for i, size in enumerate(parameter.shape)]
    blocks = f" of {stride} blocks" if stride > 1 else ""  # each rank has its share of every block
    return Coverage(tuple(shape), f"dim {dim}: {ranks.index(dist.get_rank())}/{len(ranks)}{blocks}", _sorted(ranks))


def _term(parameter: Parameter, ranks: list[int]) -> Coverage | None:
    if len(ranks) < 2:
        return None
    part = f"{ranks.index(dist.get_rank())}/{len(ranks)}"
    return Coverage(tuple(parameter.shape), part, _sorted(ranks), term=True)


def _sorted(ranks: list[int]) -> tuple[int, ...]:
    return tuple(sorted(ranks))


def _on_reduction(parameter: Parameter, listen: Callable[[], None]) -> Remove:
    """Call ``listen`` when the reduction of the gradient of ``parameter`` begins."""
    leave = _reductions.listen(listen)
    _listening.setdefault(id(parameter), []).append(listen)

    def remove() -> None:
        entries = _listening.get(id(parameter), [])
        if listen in entries:
            entries.remove(listen)
            if not entries:
                del _listening[id(parameter)]
        leave()

    return remove


def _listen_to_reductions() -> Iterator[Undo]:
    buckets = sys.modules[BUFFERS]._ParamAndGradBucketGroup
    inherited = buckets.start_grad_sync

    @functools.wraps(inherited)
    @passage
    def start_grad_sync(self: Any, *args: Any, **kwargs: Any) -> Any:
        # with a handle, the reduction has begun, and this call does nothing
        if not compiling() and self.grad_reduce_handle is None:
            for parameter in (parameter for bucket in self.buckets for parameter in bucket.params_list):
                for listen in _listening.get(id(parameter), ()):
                    listen()
        return inherited(self, *args, **kwargs)

    yield replace(buckets, "start_grad_sync", start_grad_sync)


_reductions: Shared[Callable[[], None]] = Shared(_listen_to_reductions)
