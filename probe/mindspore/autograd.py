"""State of MindSpore's PyNative executor: whether it differentiates, and which backward is running.

Before 2.9 nodes of the graph have no identity: gradients of inputs are then missing (logged once). Where backwards
have no identity, micro batches are counted by forwards alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import mindspore
from mindspore import _c_expression

from probe.core.backend.call_stack import callers
from probe.core.backend.protocols import ForwardKind
from probe.mindspore.cell_hooks import surfacing
from probe.mindspore.private_api import executor

HAS_GRAPH = hasattr(mindspore.Tensor, "_grad_node")
"""True if tensors have the node of the graph that they come from."""

HAS_IDENTITIES = HAS_GRAPH and hasattr(getattr(_c_expression, "BackwardNodePy", None), "_unique_id")
"""True if these nodes have identities: before 2.9 each access returns another object for the same node."""

KNOWS_BACKWARD = hasattr(executor, "get_current_autodiff_engine_id")
"""True if a running backward has an identity."""
_engine_id: Callable[[], int] = getattr(executor, "get_current_autodiff_engine_id", lambda: -1)


def backward_id() -> int:
    """Return the identity of the running backward pass; -1 outside of one."""
    return int(_engine_id())


def differentiates() -> bool:
    """Return whether operations now become part of a graph."""
    return bool(executor.grad_flag() and executor.enable_grad())


def forward_kind() -> ForwardKind | None:
    """Return the kind of the running forward: see :func:`probe.mindspore.hooks.forward_kind`."""
    if backward_id() != -1:
        return "recompute"
    if not executor.grad_flag():
        return None
    if executor.enable_grad() and KNOWS_BACKWARD:
        return "training"
    again = recomputed_by()  # walks the whole stack
    if again is not None:
        return "recompute" if again[1] else "training"
    return "training" if executor.enable_grad() else None


def recomputed_by() -> tuple[int, bool] | None:
    """Return the identity of the recomputed cell that is running, if any, and whether this is its second time: it runs
    without gradients in the forward, and again in its backward. Only the stack shows this (MindSpore 2.10)."""
    for frame in callers():
        if frame.f_code.co_name in ("construct", "bprop"):
            cell = frame.f_locals.get("self")
            if type(cell).__name__ == "_RecomputeCell":
                return id(cell), frame.f_code.co_name == "bprop"
    return None


def at_end_of_backward(function: Callable[[], None]) -> None:
    """Call ``function`` when the running backward ends."""
    executor.queue_backward_final_callback(surfacing(function))


def feeds(_models: Iterable[Any]) -> bool:
    """Return True: the parameters that a running backward leads to are unknown, so each backward counts."""
    return True
