"""Kinds of optimizers of a framework, and the choice of the kind that knows an optimizer."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from probe.core.backend.protocols import Adam, Optimizer, Parameter, Remove, Shard, StepListener, Tensor


class OptimizerKind(Protocol):
    """Contract of a kind of optimizer: a module of plain functions, as :class:`probe.core.backend.protocols.Hooks`."""

    def knows(self, optimizer: Optimizer) -> bool:
        """Return whether ``optimizer`` is of this kind."""

    def owned(self, optimizer: Optimizer) -> Sequence[Parameter]:
        """Return the parameters that ``optimizer`` updates."""

    def state(self, optimizer: Optimizer, parameter: Parameter) -> Mapping[str, Tensor | Shard]:
        """Return the optimizer's tensors for ``parameter``, by torch's names."""

    def adam(self, optimizer: Optimizer) -> Callable[[Parameter], Adam | None]:
        """Return a function from a parameter to the hyperparameters of its update, None if it is not Adam-like."""

    def on_step(self, optimizer: Optimizer, listener: StepListener) -> Remove:
        """Call ``listener`` at every training step of ``optimizer``."""


Kind = TypeVar("Kind", bound=OptimizerKind)


def chooser(kinds: Iterable[Kind]) -> Callable[[Optimizer], Kind]:
    """Return a function that returns the first of ``kinds`` that knows an optimizer. It keeps the latest answer, since
    it is asked for each parameter of an optimizer in turn."""
    latest: tuple[Callable[[], object], Kind] | None = None

    def choose(optimizer: Optimizer) -> Kind:
        nonlocal latest
        if latest is not None and latest[0]() is optimizer is not None:
            return latest[1]
        kind = next(kind for kind in kinds if kind.knows(optimizer))
        with suppress(TypeError):  # an object that cannot be referred to weakly
            latest = weakref.ref(optimizer), kind
        return kind

    return choose


def dispatched(choose: Callable[[Optimizer], OptimizerKind], name: str) -> Callable[..., Any]:
    """Return the function ``name`` for any optimizer: that of the kind which ``choose`` returns."""

    def call(optimizer: Optimizer, *args: Any) -> Any:
        return getattr(choose(optimizer), name)(optimizer, *args)

    return call


class GradientKind(Protocol):
    """Kind of optimizer that has the gradients which it applies."""

    def gradient(self, optimizer: Optimizer, parameter: Parameter, main_grad: bool) -> Tensor | Shard | None:
        """Return the gradient that ``optimizer`` will apply: ``main_grad`` if requested and present, else ``grad``."""


def bound_gradient(
    choose: Callable[[Optimizer], GradientKind],
) -> Callable[[Optimizer, bool], Callable[[Parameter], Tensor | Shard | None]]:
    """Return a function that binds ``gradient`` of the kind of an optimizer to that optimizer: the kind is chosen once
    for all parameters, each of which then costs one call."""

    def bind(optimizer: Optimizer, main_grad: bool) -> Callable[[Parameter], Tensor | Shard | None]:
        return functools.partial(choose(optimizer).gradient, optimizer, main_grad=main_grad)

    return bind


def evaluating(
    closure: Callable[[], Any], begun: Callable[[], bool], begin: Callable[[], object], listener: StepListener
) -> Callable[[], Any]:
    """Return ``closure`` as an optimizer is to call it: its first evaluation in a step computes the gradients, with
    which the step begins; later evaluations are a line search."""

    @functools.wraps(closure)
    def evaluate() -> Any:
        if not begun():
            loss = closure()
            begin()
            return loss
        listener.searching(True)
        try:
            return closure()
        finally:
            listener.searching(False)

    return evaluate
