"""Optimizers in the manner of torch over MindSpore's tensors (msadapter, mindtorch): ``step``, ``param_groups``,
``state``, and gradients that the parameters hold."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import mindspore

from probe.core.framework import StepListener
from probe.core.patching import replace
from probe.mindspore.gradients import given, gradient, reducers_of
from probe.mindspore.listeners import surfacing


def knows(optimizer: Any) -> bool:
    """Whether ``optimizer`` has a ``step`` and groups of parameters; a cell of MindSpore's own is called instead."""
    return callable(getattr(optimizer, "step", None)) and bool(getattr(optimizer, "param_groups", None))


def owned(optimizer: Any) -> list[Any]:
    """Every parameter of every group."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def state(optimizer: Any, parameter: Any) -> Mapping[str, Any]:
    """The tensors kept for ``parameter``; the step counter is none."""
    states = getattr(optimizer, "state", {})
    kept = states.get(parameter, {}) if hasattr(states, "get") else {}
    tensors = {kind: value for kind, value in kept.items() if isinstance(value, mindspore.Tensor)}
    return {kind: value for kind, value in tensors.items() if kind != "step" or value.shape}


def state_names(optimizer: Any) -> dict[str, str]:  # noqa: ARG001
    """Nothing is renamed: these names are torch's already."""
    return {}


def on_step(optimizer: Any, listener: StepListener) -> Callable[[], None]:
    """Wraps ``step`` of this one object."""
    original = optimizer.step
    depth = 0

    def begin() -> None:
        with given([(p, gradient(p, main_grad=True)) for p in owned(optimizer)] if listener.sampled else []):
            listener.before(optimizer, None)

    @functools.wraps(original)
    def step(*args: Any, **kwargs: Any) -> Any:
        nonlocal depth
        if not depth:
            surfacing(begin)()
        depth += 1
        try:
            result = original(*args, **kwargs)
        finally:
            depth -= 1
        if not depth:
            surfacing(listener.after)(optimizer, "applied")
        return result

    with ExitStack() as attached:
        attached.enter_context(reducers_of(lambda: owned(optimizer)))
        attached.callback(replace(optimizer, "step", step))
        return attached.pop_all().close
