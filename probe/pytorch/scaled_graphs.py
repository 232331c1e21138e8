"""Graphs of scaled losses: which ``GradScaler`` has scaled the loss whose backward runs.

A hook on each scaled loss notes the backward that passes it. Where one backward passes the losses of several scalers,
the parameters to which each loss leads decide.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.autograd import Variable
from torch.autograd.function import FunctionCtx

from probe.core.backend.call_stack import callers
from probe.core.door import FaultCounter, Hook
from probe.pytorch.engines.homes import home

Parameters = Callable[[], Iterable[Any]]
"""Function that returns the parameters whose gradients are read."""
MOST_BACKWARDS = 64
"""Number of backwards that are remembered: those that failed have no end."""


class _Passed(NamedTuple):
    """A scaled loss that a backward has passed."""

    scaler: weakref.ref[Any]
    leaves: frozenset[int] | None
    """Identities of the tensors to which it leads; None if no other scaler's loss was waiting."""


class _Waiting:
    """A scaled loss; it lives as long as its graph."""

    def __init__(self, scaler: Any) -> None:
        self.scaler = weakref.ref(scaler)

    def reached(self, _: torch.Tensor) -> None:
        """Note that the running backward passes this loss."""
        identity, thread = torch._C._current_graph_task_id(), threading.get_ident()
        passed = BACKWARDS.setdefault(identity, [])
        if not passed:
            Variable._execution_engine.queue_callback(partial(_forget, thread))
            while len(BACKWARDS) > MOST_BACKWARDS:
                BACKWARDS.popitem(last=False)
        _running[thread] = identity
        _waiting.discard(self)
        losses: list[_Passed | _Waiting] = [*passed, *_waiting]
        mixed = any(loss.scaler() is not self.scaler() for loss in losses)
        passed.append(_Passed(self.scaler, _leaves(torch._C._current_autograd_node()) if mixed else None))


_waiting: weakref.WeakSet[_Waiting] = weakref.WeakSet()
BACKWARDS: OrderedDict[int, list[_Passed]] = OrderedDict()
"""The losses that each backward has passed, by its identity."""
_running: dict[int, int] = {}
"""The backward that runs on each thread."""


def _forget(thread: int) -> None:
    """Forget the backward of a thread, which has ended."""
    _running.pop(thread, None)


def forget() -> None:
    """Forget all backwards: those that failed have no end, and would be looked for at each gradient."""
    BACKWARDS.clear()
    _running.clear()


def place(loss: Any, scaler: Any, faults: FaultCounter) -> bool:
    """Note the backwards that pass ``loss``, which ``scaler`` has just scaled; return False if that is impossible."""
    if not isinstance(loss, torch.Tensor) or loss.grad_fn is None:
        return False
    waiting = _Waiting(scaler)
    _waiting.add(waiting)
    loss.register_hook(Hook(faults, "loss scale", waiting.reached))
    return True


def scaler_of(parameters: Parameters) -> Any:
    """Return the scaler of the backward that runs, as its gradients reach ``parameters``; None if no scaled loss was
    passed."""
    passed = BACKWARDS.get(torch._C._current_graph_task_id())
    if passed is None and (around := _running.get(threading.get_ident())) is not None and _within_backward():
        passed = BACKWARDS.get(around)
    if not passed:
        return None
    scalers = {id(graph.scaler()): graph for graph in passed}
    if len(scalers) > 1:
        leaves = {id(_leaf(parameter)) for parameter in parameters()}
        leading = [graph for graph in passed if graph.leaves is None or not leaves.isdisjoint(graph.leaves)]
        passed = leading or passed
    return passed[-1].scaler()


def _within_backward() -> bool:
    """Return whether a custom function's backward runs, which may start another one (reentrant checkpointing)."""
    named = (frame.f_locals.get("ctx") for frame in callers() if frame.f_code.co_name == "backward")
    return any(isinstance(context, FunctionCtx) for context in named)


def _leaf(parameter: Any) -> object:
    """Return the tensor to which a backward leads in place of ``parameter``."""
    wrapper = home(parameter)
    return parameter if wrapper is None else wrapper.leaf(parameter)


def _leaves(root: Any) -> frozenset[int]:
    """Return the identities of the tensors in which gradients from ``root`` accumulate."""
    leaves, seen, waiting = set[int](), {root}, [root]
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is None or node in seen:
                continue
            seen.add(node)
            waiting.append(node)
            if (variable := getattr(node, "variable", None)) is not None:
                leaves.add(id(variable))
    return frozenset(leaves)
