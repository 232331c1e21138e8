"""Patches that let Megatron-Core train on a CPU: imported in each process before anything else.

Megatron asks ``torch.cuda`` for its device, determines precisions by the names of CUDA tensor types, and keeps the
random state of a GPU. This module only puts the CPU in those places; Megatron computes as ever.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch


def _without_gpu(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A factory that makes on the CPU what was asked for on a GPU."""

    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> torch.Tensor:
        if "cuda" in str(kwargs.get("device", "")):
            kwargs["device"] = "cpu"
        return make(*args, **kwargs)

    return made


def _type_name(original: Callable[..., Any]) -> Callable[..., Any]:
    """``Tensor.type`` that calls a CPU tensor what Megatron calls the tensors it trains."""

    @functools.wraps(original)
    def type_(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        found = original(tensor, *args, **kwargs)
        return found.replace("torch.", "torch.cuda.") if isinstance(found, str) and "cuda" not in found else found

    return type_


def _prepare_torch() -> None:
    device = torch.device("cpu")
    torch.cuda.current_device = lambda: device  # type: ignore[assignment, return-value]
    torch.cuda.synchronize = lambda *_, **__: None
    torch.cuda.get_rng_state = lambda *_, **__: torch.get_rng_state()
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor  # type: ignore[assignment, misc]
    torch.Tensor.type = _type_name(torch.Tensor.type)  # type: ignore[method-assign]
    for name in ("empty", "ones", "tensor", "zeros"):
        setattr(torch, name, _without_gpu(getattr(torch, name)))


def _prepare_megatron() -> None:
    random = importlib.import_module("megatron.core.tensor_parallel.random")
    random._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    optimizer = importlib.import_module("megatron.core.optimizer.distrib_optimizer")
    if (quantize := getattr(optimizer, "quantize_param_shard", None)) is not None:  # 0.12 calls it without fp8, too
        optimizer.quantize_param_shard = lambda models, *args, **kwargs: (
            quantize(models, *args, **kwargs) if models else None
        )


_made: list[Any] = []
"""The process groups of the latest :func:`groups`."""


def groups(**sizes: Any) -> None:
    """Megatron's process groups, instead of those made before: each has threads that wake up a hundred times a second,
    and those of all cases together would leave no time for anything else."""
    state, known = importlib.import_module("megatron.core.parallel_state"), torch.distributed.distributed_c10d._world
    state.destroy_model_parallel()
    while _made:
        if (group := _made.pop()) in known.pg_map:
            torch.distributed.destroy_process_group(group)
    before = {*known.pg_map}
    state.initialize_model_parallel(**sizes)
    _made.extend(group for group in known.pg_map if group not in before)


_prepare_torch()
_prepare_megatron()
