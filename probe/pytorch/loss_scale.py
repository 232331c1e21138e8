"""Listeners to ``torch.amp.GradScaler``, which skips steps and holds the loss scale.

A skipped step leaves no trace in the optimizer, and ``GradScaler`` has no hook (torch 2.13;
https://github.com/pytorch/pytorch/issues/67590). So its methods are replaced on the class while there are listeners.
"""

from __future__ import annotations

import functools
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Protocol

import torch

from probe.core.backend.patch import Shared, Undo
from probe.core.backend.protocols import Remove, StepListener
from probe.core.backend.pytree import leaves
from probe.core.door import Around, FaultCounter, attempt, compiling, passage, replace
from probe.core.records import Outcome
from probe.pytorch import scaled_graphs
from probe.pytorch.scaled_graphs import Parameters

Method = Callable[..., Any]
Scale = torch.Tensor | None


class ScaledStepListener(Protocol):
    """Listener that is called when a scaler begins and ends a step, skipped or not."""

    def scaled_began(self) -> None: ...
    def scaled_ended(self) -> None: ...
    @property
    def faults(self) -> FaultCounter: ...
    @property
    def sampled(self) -> bool: ...


class _Watched:
    """Optimizer and the listener to its steps."""

    def __init__(self, optimizer: Any, listener: ScaledStepListener) -> None:
        self.optimizer, self.listener = optimizer, listener


_stepping: list[_Watched] = []
"""Optimizers whose scaler's ``step`` is running: that of a subclass may call its parent's."""
_current: weakref.ref[Any] | None = None
"""The scaler that has scaled a loss last."""
_unplaced = False
"""True if that loss shows nothing of its backward."""
_steps: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = weakref.WeakKeyDictionary()
"""The scaler of each optimizer that has stepped by one."""
_others: list[_Own] = []
"""Optimizers that scale gradients themselves."""
_losses: deque[tuple[weakref.ref[Any], weakref.ref[Any]]] = deque(maxlen=8)
"""The latest losses that scalers have multiplied, each with its scaler."""


class _Own:
    """Optimizer that scales gradients itself, with the function that returns its factor."""

    def __init__(self, optimizer: Any, scale: Callable[[], Scale], owned: Callable[[], Sequence[Any]]) -> None:
        self.optimizer, self.scale, self._owned = optimizer, scale, owned
        self._parameters: frozenset[int] | None = None

    def updates(self, parameters: Iterable[Any]) -> bool:
        """Return whether the optimizer updates any of ``parameters``."""
        if self._parameters is None:
            self._parameters = frozenset(map(id, self._owned()))
        return any(id(parameter) in self._parameters for parameter in parameters)


def loss_scale(parameters: Parameters = tuple) -> Scale:
    """Return the factor on the loss whose backward runs, as its gradients reach ``parameters``; outside of a backward,
    that on the latest loss. None if no watched scaler or optimizer scales it."""
    scaler = _current() if _current is not None else None
    if torch._C._current_graph_task_id() != -1 and not _unplaced:
        scaler = scaled_graphs.scaler_of(parameters) if scaled_graphs.BACKWARDS else None
    if scaler is not None:
        return getattr(scaler, "_scale", None)
    if len(_others) > 1:
        mine = [*parameters()]
        return next((entry.scale() for entry in _others if entry.updates(mine)), None)
    return _others[0].scale() if _others else None


def scale_of(root: torch.Tensor) -> Scale:
    """Return the factor by which a watched scaler has multiplied ``root``; if none has, that of the latest loss."""
    scaler = next((scaler_of_loss() for loss, scaler_of_loss in reversed(_losses) if loss() is root), None)
    if scaler is None and _current is not None:
        scaler = _current()
    if scaler is None and len(_others) == 1:
        return _others[0].scale()
    return getattr(scaler, "_scale", None)


def on_own_scale(
    optimizer: Any,
    listener: StepListener,
    scale: Callable[[], Scale],
    outcome: Callable[[Any], Outcome],
    owned: Callable[[], Sequence[Any]],
) -> Remove:
    """Call ``listener`` at every ``step`` of an optimizer that has no hooks and scales gradients itself; replace the
    method on this one object.

    Args:
        scale: returns the factor on losses and held gradients; :func:`loss_scale` calls it, too.
        outcome: returns the outcome of a step, from the result of the method.
        owned: returns the parameters that the optimizer updates.
    """

    def before(*_: Any) -> None:
        listener.before(optimizer, attempt(listener.faults, "loss scale", scale) if listener.reads_gradients else None)

    def after(result: Any) -> None:
        listener.after(optimizer, outcome(result))

    with ExitStack() as placed:
        placed.callback(Around(optimizer, "step", listener.faults, before, after).place())
        _others.append(entry := _Own(optimizer, scale, owned))
        placed.callback(_others.remove, entry)
        return placed.pop_all().close


def on_scaled_step(optimizer: Any, listener: ScaledStepListener) -> Callable[[], None]:
    """Call ``listener`` at every step of ``optimizer`` that a scaler takes or skips."""
    return _watched.listen(_Watched(optimizer, listener))


def found_inf(optimizer: Any) -> torch.Tensor | None:
    """Return the number that a scaler has handed to a fused optimizer, which skips its update if it is not 0."""
    number = getattr(optimizer, "found_inf", None)
    return number if isinstance(number, torch.Tensor) else None


def held_scale(optimizer: Any) -> torch.Tensor | None:
    """Return the factor on the gradients of ``optimizer``: that of the losses until the gradients are unscaled."""
    if (entry := next((entry for entry in _others if entry.optimizer is optimizer), None)) is not None:
        return entry.scale()
    reference = _steps.get(optimizer, _current)
    scaler = reference() if reference is not None else None
    state = getattr(scaler, "_per_optimizer_states", {}).get(id(optimizer), {})
    return None if state and state["stage"].name != "READY" else getattr(scaler, "_scale", None)


def _install() -> Iterator[Undo]:
    """Replace the methods of all subclasses, which may override them, as FSDP's ``ShardedGradScaler`` does."""
    yield scaled_graphs.forget
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
    global _current, _unplaced
    _current, _unplaced = None, False


def _scale(original: Method) -> Method:
    @passage
    def scale(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if not compiling():
            listeners = [entry.listener for entry in _watched]
            if listeners:
                faults = listeners[0].faults
                attempt(
                    faults, "loss scale", _scaled, self, result, any(listener.sampled for listener in listeners), faults
                )
        return result

    return scale


def _scaled(scaler: Any, losses: Any, sampled: bool, faults: FaultCounter) -> None:
    """Record that ``scaler`` has scaled ``losses``."""
    global _current, _unplaced  # noqa: PLW0603
    _forget()
    if scaler.is_enabled():
        _current = weakref.ref(scaler)
        _losses.extend((weakref.ref(loss), _current) for loss in leaves(losses) if isinstance(loss, torch.Tensor))
        placed = {scaled_graphs.place(loss, scaler, faults) for loss in (leaves(losses) if sampled else ())}
        _unplaced = placed != {True}


def _step(original: Method) -> Method:
    @passage
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if compiling():
            return original(self, optimizer, *args, **kwargs)
        watched = [entry for entry in _watched if entry.optimizer is optimizer and entry not in _stepping]
        for entry in watched:
            _stepping.append(entry)
            _steps[optimizer] = weakref.ref(self)
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
    @passage
    def update(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not compiling():
            _forget()
        return original(self, *args, **kwargs)

    return update
