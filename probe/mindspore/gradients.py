"""Gradients in MindSpore: passed to hooks and to the optimizer, not held in between.

A hook of ``Parameter.register_hook`` receives the gradient of one backward. Only the user of the sum over several
backwards has it: a ``DistributedGradReducer``, or else the optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakSet, ref

from mindspore import Parameter, Tensor, nn

from probe.core.backend.patch import Shared, Undo
from probe.core.backend.protocols import Guard, Listen, Remove, StepListener
from probe.core.door import attempt, count, replace, weakly
from probe.mindspore.cell_hooks import OfGradient, surfacing

Owned = Callable[[Any], Sequence[Any]]
"""Function that returns an optimizer's parameters."""


class _Sum:
    """A parameter whose gradient is added up over micro batches."""

    def __init__(self, listen: Listen) -> None:
        self.listen = listen
        self.backwards = 0


_sums: dict[int, WeakSet[_Sum]] = {}
"""Sums by the identity of their parameter, which the optimizer and the model keep alive. The functions that remove
their hooks keep the entries alive."""
_applied: dict[int, Any] = {}
"""Gradients with which the optimizer is about to step, by the identity of the parameter."""
_passed: dict[int, Callable[[], Any]] = {}
"""References to the gradients of the update that runs, by the identity of the parameter. Gradients that are parameters
are left out: programs add to these in place, and nothing shows when."""


class _Owner:
    """The parameters of an optimizer, and the listener to its steps."""

    def __init__(self, owned: Callable[[], Sequence[Any]], listener: StepListener) -> None:
        self.owned, self.listener = owned, listener


def gradient(optimizer: Any, parameter: Any, main_grad: bool) -> Any:  # noqa: ARG001
    """Return the gradient with which the optimizer is about to step; else ``main_grad`` or ``grad`` if the parameter
    has one (msadapter)."""
    if id(parameter) in _applied:
        return _applied[id(parameter)]
    return _in_attribute(parameter, main_grad)


def _in_attribute(parameter: Any, main_grad: bool) -> Any:
    held = getattr(parameter, "main_grad", None) if main_grad else None
    return getattr(parameter, "grad", None) if held is None else held


def present(parameter: Any) -> Any:
    """Return the gradient of a parameter that the optimizer is called with, or that a backward has just returned; else
    the one that the parameter itself holds (msadapter)."""
    identity = id(parameter)
    if identity in _applied:
        return _applied[identity]
    if identity in _passed and (value := _passed[identity]()) is not None:
        return value
    return _in_attribute(parameter, main_grad=True)


def release() -> None:
    """Forget the gradients of the update that has ended."""
    _passed.clear()


@contextmanager
def returned(gradients: Mapping[int, Any]) -> Iterator[None]:
    """Context in which :func:`present` returns ``gradients``, those of a backward, by the identity of the parameter."""
    before = {**_applied}
    _applied.update(gradients)
    try:
        yield
    finally:
        _applied.clear()
        _applied.update(before)


def gradients_of(optimizer: Any, main_grad: bool) -> Callable[[Any], Any]:
    """Return :func:`gradient` as a function of the parameter alone."""
    return partial(gradient, optimizer, main_grad=main_grad)


def holds(optimizer: Any, parameter: Any, main_grad: bool) -> bool:
    """Return whether ``optimizer`` is about to step with a gradient of ``parameter``, passed or held in ``grad``."""
    return gradient(optimizer, parameter, main_grad) is not None


def on_gradient(parameter: Any, listen: Listen, *, own: bool, main_grad: bool, guard: Guard) -> Remove:  # noqa: ARG001
    """Call ``listen`` once a backward, with the gradient of this backward alone (``own``) or with the sum so far. The
    sum of several backwards is None until a reducer or the optimizer receives it."""
    if own:
        return _hook(parameter, guard(listen))
    entry = _Sum(guard(listen))

    def receive(value: Any) -> None:
        entry.backwards += 1
        listen(value if entry.backwards == 1 else None)

    unhook, identity = _hook(parameter, guard(receive)), id(parameter)
    _sums.setdefault(identity, WeakSet()).add(entry)

    def remove() -> None:
        unhook()
        entries = _sums.get(identity, WeakSet())
        entries.discard(entry)
        if not entries:
            _sums.pop(identity, None)

    return remove


def _hook(parameter: Any, hook: Callable[..., None]) -> Remove:
    """Place ``hook`` on a gradient, weakly: MindSpore holds the parameter for longer than the model."""
    handle = parameter.register_hook(OfGradient(weakly(hook)))

    def remove() -> None:
        handle.remove()
        nonlocal hook
        hook = _nothing

    return remove


def _nothing(*_: Any) -> None:
    """Do nothing: replaces a hook that was removed."""


@contextmanager
def applied(optimizer: Any, owned: Owned, gradients: Sequence[Any] | None, listener: StepListener) -> Iterator[None]:
    """Context in which :func:`gradient` returns the gradients with which ``optimizer`` is about to step; if
    ``gradients`` is None, those that its parameters hold."""
    release()
    if listener.reads_gradients:
        try:
            parameters = owned(optimizer)
            values = [gradient(optimizer, p, main_grad=True) for p in parameters] if gradients is None else gradients
            pairs = list(zip(parameters, values, strict=False))
            if listener.sampled:
                _report_sums(pairs)
            _applied.update((id(parameter), value) for parameter, value in pairs)
        except Exception as error:  # noqa: BLE001 - nothing of ours may raise into training
            count(listener.faults, "gradients given to the optimizer", error)
    try:
        yield
    finally:
        attempt(listener.faults, "gradients given to the optimizer", _pass_on)
        _applied.clear()


def _pass_on() -> None:
    """Keep references to the gradients until :func:`release`."""
    tensors = ((identity, value) for identity, value in _applied.items() if isinstance(value, Tensor))
    _passed.update((identity, ref(value)) for identity, value in tensors if not isinstance(value, Parameter))


def _report_sums(pairs: Sequence[tuple[Any, Any]]) -> None:
    """Send the sums over several backwards to their listeners, and reset the counts."""
    for parameter, value in pairs:
        for entry in _sums.get(id(parameter), ()):
            backwards, entry.backwards = entry.backwards, 0
            if backwards > 1 and value is not None:
                entry.listen(value)


def on_reduction(owned: Callable[[], Sequence[Any]], listener: StepListener) -> Remove:
    """Listen to every ``DistributedGradReducer`` that is called with one gradient for each parameter of ``owned``.

    Scripts make the reducers, and neither model nor optimizer refers to them: so the listener is on their class.
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
                _report_sums(list(zip(parameters, values, strict=True)))
                return
        except Exception as error:  # noqa: BLE001 - nothing of ours may raise into training
            count(listener.faults, "gradients given to a reducer", error)
