"""Process groups of Megatron-Core, which is not imported here: if it trains, training has imported it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

NAMED: dict[str, tuple[str, dict[str, bool]]] = {
    "data_parallel": ("get_data_parallel_group", {}),
    "data_and_context_parallel": ("get_data_parallel_group", {"with_context_parallel": True}),
    "tensor_parallel": ("get_tensor_model_parallel_group", {}),
    "pipeline_parallel": ("get_pipeline_model_parallel_group", {}),
    "context_parallel": ("get_context_parallel_group", {}),
    "expert_parallel": ("get_expert_model_parallel_group", {}),
    "expert_tensor_parallel": ("get_expert_tensor_parallel_group", {}),
    "expert_data_parallel": ("get_expert_data_parallel_group", {}),
}
"""Groups by the monitor's names, each with Megatron's function that returns it, and its arguments."""


def here() -> bool:
    """Return whether Megatron-Core is in use in this process."""
    return "megatron.core" in sys.modules


def is_a(thing: object, *kinds: str) -> bool:
    """Return whether ``thing`` is an instance of a class with one of these qualified names."""
    return any(f"{kind.__module__}.{kind.__qualname__}" in kinds for kind in type(thing).__mro__)


def named() -> dict[str, list[int]]:
    """Return the groups that this rank is in, with their global ranks."""
    groups = {name: _group(getter, options) for name, (getter, options) in NAMED.items()}
    return {name: list(dist.get_process_group_ranks(group)) for name, group in groups.items() if group is not None}


def tensor_ranks(parameter: Any, module: Any) -> list[int]:
    """Return the global ranks among which ``parameter`` of ``module``, or at least its layer, is split."""
    group = getattr(module, "tp_group", None)  # from 0.13 on, where layers may have groups of their own
    if not isinstance(group, dist.ProcessGroup):
        expert = not getattr(parameter, "allreduce", True)
        group = _group("get_expert_tensor_parallel_group" if expert else "get_tensor_model_parallel_group", {})
    return list(dist.get_process_group_ranks(group)) if group is not None else []


def together(one: Sequence[int], other: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return all ranks of the plane that two groups of ``rank`` span: groups are axes of a grid of ranks."""
    return tuple(sorted({a + b - rank for a in one for b in other}))


def _group(getter: str, options: dict[str, bool]) -> Any:
    """Return the result of a function of Megatron; None if the group is not set up, or is not torch's."""
    state = sys.modules.get("megatron.core.parallel_state")
    if state is None or not state.model_parallel_is_initialized():
        return None
    try:
        group = getattr(state, getter)(**options)
    except (AssertionError, AttributeError):
        return None
    return group if isinstance(group, dist.ProcessGroup) else None
