"""Gradients in MindSpore: handed to hooks and to the optimizer, and held by nobody in between.

What a backward gives a parameter is heard by ``Parameter.register_hook``. What several backwards add up to is known
where the sum is used: by a ``DistributedGradReducer``, or else by the optimizer.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from mindspore import nn

from probe.core.backend.patch import Shared, Undo, replace
from probe.core.backend.protocols import Guard, Listen, Remove, StepListener
from probe.mindspore.cell_hooks import surfacing

Owned = Callable[[Any], Sequence[Any]]
"""What gives an optimizer's parameters."""


class _Sum:
    """A parameter whose gradient is added up over micro batches."""

    def __init__(self, listen: Listen) -> None:
        self.listen = listen
        self.backwards = 0


_sums: dict[int, WeakSet[_Sum]] = {}
"""By the identity of their parameter, which the optimizer and the model keep alive. What takes their hooks away keeps
them."""
_given: dict[int, Any] = {}
"""What the optimizer that is about to step was given, by the identity of the parameter."""


class _Owner:
    """What an optimizer that is listened to updates, and who listens."""

    def __init__(self, owned: Callable[[], Sequence[Any]], listener: StepListener) -> None:
        self.owned, self.listener = owned, listener


def gradient(optimizer: Any, parameter: Any, main_grad: bool) -> Any:  # noqa: ARG001
    """What the optimizer was given for ``parameter``, while it is about to step; else ``main_grad`` or ``grad`` where
    the parameter has one (msadapter)."""
    if id(parameter) in _given:
        return _given[id(parameter)]
    held = getattr(parameter, "main_grad", None) if main_grad else None
    return getattr(parameter, "grad", None) if held is None else held


def holds(optimizer: Any, parameter: Any, main_grad: bool) -> bool:
    """Whether ``optimizer`` was given a gradient, or finds one in ``grad``."""
    return gradient(optimizer, parameter, main_grad) is not None


def on_gradient(parameter: Any, listen: Listen, *, own: bool, main_grad: bool, guard: Guard) -> Remove:  # noqa: ARG001
    """Listens once a backward: to the gradient of this backward alone (``own``), or to the sum so far: that of several
    backwards is None until a reducer or the optimizer gets it."""
    if own:
        return _hook(parameter, guard(listen))
    entry = _Sum(guard(listen))

    def hear(value: Any) -> None:
        entry.backwards += 1
        listen(value if entry.backwards == 1 else None)

    unhook, identity = _hook(parameter, guard(hear)), id(parameter)
    _sums.setdefault(identity, WeakSet()).add(entry)

    def remove() -> None:
        unhook()
        entries = _sums.get(identity, WeakSet())
        entries.discard(entry)
        if not entries:
            _sums.pop(identity, None)

    return remove


def _hook(parameter: Any, hook: Callable[..., None]) -> Remove:
    """Places ``hook`` on a gradient. MindSpore holds what it is given where no garbage collection looks (2.10), and the
    parameter itself for longer than the model, so it is given a function that keeps nothing alive."""
    known = weakref.ref(hook)

    def call(*args: Any) -> None:
        if (found := known()) is not None:
            found(*args)

    handle = parameter.register_hook(surfacing(call))

    def remove() -> None:
        handle.remove()
        nonlocal hook
        hook = _nothing

    return remove


def _nothing(*_: Any) -> None:
    """What is left of a hook that was taken away."""


@contextmanager
def given(optimizer: Any, owned: Owned, gradients: Sequence[Any] | None, listener: StepListener) -> Iterator[None]:
    """While an optimizer is about to step: what it was given for each of its parameters; if that is None, what they
    hold."""
    if listener.sampled:
        try:
            parameters = owned(optimizer)
            values = [gradient(optimizer, p, main_grad=True) for p in parameters] if gradients is None else gradients
            pairs = list(zip(parameters, values, strict=False))
            _tell_sums(pairs)
            _given.update((id(parameter), value) for parameter, value in pairs)
        except Exception as error:  # noqa: BLE001 - nothing of ours may raise into training
            listener.failed("gradients given to the optimizer", error)
    try:
        yield
    finally:
        _given.clear()


def _tell_sums(pairs: Sequence[tuple[Any, Any]]) -> None:
    """Tells who listens to sums what several backwards have come to, and begins to count anew."""
    for parameter, value in pairs:
        for entry in _sums.get(id(parameter), ()):
            backwards, entry.backwards = entry.backwards, 0
            if backwards > 1 and value is not None:
                entry.listen(value)


def on_reduction(owned: Callable[[], Sequence[Any]], listener: StepListener) -> Remove:
    """Listens to every ``DistributedGradReducer`` that is called with one gradient for each parameter of ``owned``.

    Users make reducers, and neither model nor optimizer knows them: hence the listener on their class.
    """
    return _owners.listen(_Owner(owned, listener))


def _listen_to_reducers() -> Iterator[Undo]:
    inherited = nn.DistributedGradReducer.__call__

    def call(self: Any, grads: Any, *args: Any, **kwargs: Any) -> Any:
        surfacing(_reducing)(grads)
        return inherited(self, grads, *args, **kwargs)

    yield replace(nn.DistributedGradReducer, "__call__", call)


_owners: Shared[_Owner] = Shared(_listen_to_reducers, weak=True)


def _reducing(grads: Any) -> None:
    for owner in _owners:
        listener = owner.listener
        if not listener.sampled:
            continue
        try:
            values = list(grads) if isinstance(grads, (tuple, list)) else [grads]
            parameters = owner.owned()
            if [tuple(p.shape) for p in parameters] == [tuple(getattr(value, "shape", ())) for value in values]:
                _tell_sums(list(zip(parameters, values, strict=True)))
                return
        except Exception as error:  # noqa: BLE001 - nothing of ours may raise into training
            listener.failed("gradients given to a reducer", error)
