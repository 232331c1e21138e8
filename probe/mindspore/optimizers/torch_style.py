"""Optimizers with torch's interface over MindSpore's tensors (msadapter, mindtorch): ``step``, ``param_groups``,
``state``, and gradients that the parameters hold."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import mindspore

from probe.core.backend.optimizer_kinds import evaluating
from probe.core.backend.protocols import Adam, Remove, StepListener
from probe.core.door import Around
from probe.mindspore import cell_hooks
from probe.mindspore.cell_hooks import surfacing
from probe.mindspore.gradients import applied, on_reduction, release
from probe.mindspore.optimizers import nn_cell


def knows(optimizer: Any) -> bool:
    """Return whether ``optimizer`` has a ``step`` and groups of MindSpore's parameters; MindSpore's own cells are
    called instead."""
    if not callable(getattr(optimizer, "step", None)) or not getattr(optimizer, "param_groups", None):
        return False
    first = next((parameter for group in optimizer.param_groups for parameter in group["params"]), None)
    return isinstance(first, mindspore.Tensor)


def owned(optimizer: Any) -> list[Any]:
    """Return every parameter of every group."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def state(optimizer: Any, parameter: Any) -> Mapping[str, Any]:
    """Return the optimizer's tensors for ``parameter``, without the step counter."""
    if _is_cell(optimizer):
        return nn_cell.state(optimizer, parameter)
    kept = getattr(optimizer, "state", {}).get(parameter, {})
    tensors = {kind: value for kind, value in kept.items() if isinstance(value, mindspore.Tensor)}
    return {kind: value for kind, value in tensors.items() if kind != "step" or value.shape}


def state_names(optimizer: Any) -> dict[str, str]:
    """Return MindSpore's names if MindSpore keeps the state; else nothing: the names are torch's already."""
    return nn_cell.state_names(optimizer) if _is_cell(optimizer) else {}


def learning_rate(optimizer: Any) -> object:
    """Return the learning rate of the first group of parameters."""
    return optimizer.param_groups[0]["lr"]


def adam(optimizer: Any) -> Callable[[Any], Adam | None]:
    """Return a lookup of the hyperparameters: the parameter's group, and the number of steps in its state."""
    if _is_cell(optimizer):
        return nn_cell.adam(optimizer)
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}

    def lookup(parameter: Any) -> Adam | None:
        group, steps = groups.get(id(parameter), {}), getattr(optimizer, "state", {}).get(parameter, {}).get("step")
        if steps is None or "eps" not in group or "betas" not in group:
            return None
        return Adam(group["betas"][0], group["betas"][1], group["eps"], steps)

    return lookup


def _is_cell(optimizer: Any) -> bool:
    """Return whether the optimizer is a cell of MindSpore's own (mindtorch), which leaves ``state`` empty."""
    return nn_cell.knows(optimizer) and not getattr(optimizer, "state", None)


def on_step(optimizer: Any, listener: StepListener) -> Remove:
    """Replace ``step`` on this one object; an optimizer that is a cell may be called instead, which is listened to."""
    steps = _Steps(optimizer, listener)
    with ExitStack() as attached:
        attached.callback(on_reduction(lambda: owned(optimizer), listener))
        attached.callback(_Step(optimizer, steps, listener).place())
        if nn_cell.knows(optimizer):
            attached.callback(cell_hooks.before(optimizer, steps.called))
            attached.callback(cell_hooks.after(optimizer, steps.returned))
        return attached.pop_all().close


class _Step(Around):
    """``step`` of one optimizer, with listeners around it; a copy of the optimizer has its own method again."""

    def __init__(self, optimizer: Any, steps: _Steps, listener: StepListener) -> None:
        super().__init__(optimizer, "step", listener.faults, lambda *_: None, lambda _: None)
        self._steps = steps

    def call(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._steps.around(original)(*args, **kwargs)


class _Steps:
    """Converter of calls of one optimizer's ``step`` into training steps."""

    def __init__(self, optimizer: Any, listener: StepListener) -> None:
        self._optimizer, self._listener = optimizer, listener
        self._running = self._begun = False

    def around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``original`` with listeners: its argument is nothing, a closure, or (mindtorch) the gradients."""

        @functools.wraps(original)
        def step(*args: Any, **kwargs: Any) -> Any:
            if self._running:
                return original(*args, **kwargs)
            self._running, self._begun = True, False
            try:
                if any(map(callable, (*args, *kwargs.values()))):
                    args = tuple(map(self._evaluating, args))
                    kwargs = {name: self._evaluating(value) for name, value in kwargs.items()}
                else:
                    self._begin(next(iter((*args, *kwargs.values())), None))
                result = original(*args, **kwargs)
            finally:
                self._running = False
            self._begin()
            self._end()
            return result

        return step

    def called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Receive the gradients before the cell runs; ``step`` may run the cell, too."""
        if not self._running:
            self._begun = False
            self._begin(next(iter((*args, *kwargs.values())), None))

    def returned(self, _: Any) -> None:
        """End the step after the cell has run."""
        if not self._running:
            self._end()

    def _end(self) -> None:
        try:
            surfacing(self._listener.after)(self._optimizer, "applied")
        finally:
            release()

    def _begin(self, gradients: Sequence[Any] | None = None) -> None:
        """Report the gradients, once a step."""
        if not self._begun:
            self._begun = True
            surfacing(self._report)(gradients)

    def _report(self, gradients: Sequence[Any] | None) -> None:
        with applied(self._optimizer, owned, gradients, self._listener):
            self._listener.before(self._optimizer, None)

    def _evaluating(self, argument: Any) -> Any:
        return (
            evaluating(argument, lambda: self._begun, self._begin, self._listener) if callable(argument) else argument
        )
