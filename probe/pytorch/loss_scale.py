"""Listeners to ``torch.amp.GradScaler``, which skips steps and holds the loss scale.

A skipped step leaves no trace in the optimizer, and ``GradScaler`` has no hook (torch 2.13;
https://github.com/pytorch/pytorch/issues/67590). So its methods are replaced on the class while there are listeners.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Protocol

import torch

from probe.core.backend.patch import Shared, Undo
from probe.core.backend.protocols import Remove, StepListener
from probe.core.door import Around, FaultCounter, attempt, compiling, entrance, replace
from probe.core.records import Outcome

Method = Callable[..., Any]
Scale = torch.Tensor | None


class ScaledStepListener(Protocol):
    """Listener that is called when a scaler begins and ends a step, skipped or not."""

    def scaled_began(self) -> None: ...
    def scaled_ended(self) -> None: ...
    @property
    def faults(self) -> FaultCounter: ...


class _Watched:
    """Optimizer and the listener to its steps."""

    def __init__(self, optimizer: Any, listener: ScaledStepListener) -> None:
        self.optimizer, self.listener = optimizer, listener


_stepping: list[_Watched] = []
"""Optimizers whose scaler's ``step`` is running: that of a subclass may call its parent's."""
_current: weakref.ref[Any] | None = None
_others: weakref.WeakSet[Callable[[], torch.Tensor | None]] = weakref.WeakSet()
"""Functions that return the scale of optimizers that scale gradients themselves."""


def loss_scale() -> torch.Tensor | None:
    """Return the factor on the losses of the step in progress, if a watched scaler or optimizer scales them."""
    scaler = _current() if _current is not None else None
    if scaler is None:
        return next((scale for read in _others if (scale := read()) is not None), None) if _others else None
    return getattr(scaler, "_scale", None)


def on_own_scale(
    optimizer: Any, listener: StepListener, scale: Callable[[], Scale], outcome: Callable[[Any], Outcome]
) -> Remove:
    """Call ``listener`` at every ``step`` of an optimizer that has no hooks and scales gradients itself; replace the
    method on this one object.

    Args:
        scale: returns the factor on losses and held gradients; :func:`loss_scale` calls it, too.
        outcome: returns the outcome of a step, from the result of the method.
    """

    def before(*_: Any) -> None:
        listener.before(optimizer, attempt(listener.faults, "loss scale", scale) if listener.sampled else None)

    def after(result: Any) -> None:
        listener.after(optimizer, outcome(result))

    with ExitStack() as placed:
        placed.callback(replace(optimizer, "step", Around(optimizer, "step", listener.faults, before, after)))
        _others.add(scale)
        placed.callback(_others.discard, scale)
        return placed.pop_all().close


def on_scaled_step(optimizer: Any, listener: ScaledStepListener) -> Callable[[], None]:
    """Call ``listener`` at every step of ``optimizer`` that a scaler takes or skips."""
    return _watched.listen(_Watched(optimizer, listener))


def found_inf(optimizer: Any) -> torch.Tensor | None:
    """Return the number that a scaler has handed to a fused optimizer, which skips its update if it is not 0."""
    found = getattr(optimizer, "found_inf", None)
    return found if isinstance(found, torch.Tensor) else None


def held_scale(optimizer: Any) -> torch.Tensor | None:
    """Return the factor on the gradients of ``optimizer``: that of the losses until the gradients are unscaled."""
    scaler = _current() if _current is not None else None
    state = getattr(scaler, "_per_optimizer_states", {}).get(id(optimizer), {})
    return None if state and state["stage"].name != "READY" else loss_scale()


def _install() -> Iterator[Undo]:
    """Replace the methods of all subclasses, which may override them, as FSDP's ``ShardedGradScaler`` does."""
    yield _forget
    for kind in _kinds(torch.amp.GradScaler if hasattr(torch.amp, "GradScaler") else torch.cuda.amp.GradScaler):
        for name, wrap in {"scale": _scale, "step": _step, "update": _update}.items():
            original = vars(kind).get(name)
            if original is not None:
                yield replace(kind, name, functools.wraps(original)(wrap(original)))


_watched: Shared[_Watched] = Shared(_install, weak=True)


def _kinds(kind: type) -> Iterator[type]:
    yield kind
    derived: type
    for derived in kind.__subclasses__():
        yield from _kinds(derived)


def _forget() -> None:
    global _current  # noqa: PLW0603 - the scaler in use is a fact of the process
    _current = None


def _scale(original: Method) -> Method:
    @entrance
    def scale(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if not compiling():
            for entry in _watched:
                attempt(entry.listener.faults, "loss scale", _record_scaler, self)
        return result

    return scale


def _record_scaler(scaler: Any) -> None:
    """Record that ``scaler`` has scaled a loss."""
    global _current  # noqa: PLW0603
    _forget()
    _current = weakref.ref(scaler) if _watched and scaler.is_enabled() else None


def _step(original: Method) -> Method:
    @entrance
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if compiling():
            return original(self, optimizer, *args, **kwargs)
        watched = [entry for entry in _watched if entry.optimizer is optimizer and entry not in _stepping]
        for entry in watched:
            _stepping.append(entry)
            attempt(entry.listener.faults, "optimizer", entry.listener.scaled_began)
        try:
            result = original(self, optimizer, *args, **kwargs)
        finally:
            for entry in watched:
                _stepping.remove(entry)
        for entry in watched:
            attempt(entry.listener.faults, "optimizer", entry.listener.scaled_ended)
        return result

    return step


def _update(original: Method) -> Method:
    @entrance
    def update(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not compiling():
            _forget()
        return original(self, *args, **kwargs)

    return update
