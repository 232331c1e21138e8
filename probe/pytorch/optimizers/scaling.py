"""Listening to ``torch.amp.GradScaler``, which skips steps and knows the loss scale.

A skipped step leaves no trace in the optimizer, so that ``GradScaler.step`` itself has to be heard: its class attribute
is replaced while somebody listens, and put back when the last one leaves. torch has no hook there (2.13).
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch

Method = Callable[..., Any]


class ScaledStepListener(Protocol):
    """Told when a scaler begins and ends a step, skipped or not."""

    def scaled_began(self) -> None: ...
    def scaled_ended(self) -> None: ...


_watched: list[tuple[Any, ScaledStepListener]] = []
_replaced: dict[str, tuple[Method, Method]] = {}
"""What stands in for each method, and the method."""
_current: weakref.ref[Any] | None = None
_others: list[Callable[[], torch.Tensor | None]] = []
"""How to ask the optimizers that scale by themselves."""


def _scaler() -> type:
    return torch.amp.GradScaler if hasattr(torch.amp, "GradScaler") else torch.cuda.amp.GradScaler


def loss_scale() -> torch.Tensor | None:
    """The factor on the losses of the step in progress, where a listened-to scaler or optimizer scales them."""
    scaler = _current() if _current is not None else None
    if scaler is None:
        return next((scale for ask in _others if (scale := ask()) is not None), None)
    return getattr(scaler, "_scale", None)


def on_loss_scale(ask: Callable[[], torch.Tensor | None]) -> Callable[[], None]:
    """Asks ``ask`` for the factor, too, until what is returned is called."""
    _others.append(ask)

    def remove() -> None:
        if ask in _others:
            _others.remove(ask)

    return remove


def on_scaled_step(optimizer: Any, listener: ScaledStepListener) -> Callable[[], None]:
    """Tells ``listener`` of every step of ``optimizer`` that a scaler takes or skips."""
    entry = (optimizer, listener)
    if not _watched:
        _install()
    _watched.append(entry)

    def remove() -> None:
        if entry in _watched:
            _watched.remove(entry)
            if not _watched:
                _restore()

    return remove


def held_scale(optimizer: Any) -> torch.Tensor | None:
    """The factor on the gradients held for ``optimizer``: that of the losses until its gradients are unscaled."""
    scaler = _current() if _current is not None else None
    state = getattr(scaler, "_per_optimizer_states", {}).get(id(optimizer), {})
    return None if state and state["stage"].name != "READY" else loss_scale()


def _install() -> None:
    scaler = _scaler()
    for name, wrap in {"scale": _scale, "step": _step, "update": _update}.items():
        original = scaler.__dict__[name]
        _replaced[name] = (functools.wraps(original)(wrap(original)), original)
        setattr(scaler, name, _replaced[name][0])


def _restore() -> None:
    global _current  # noqa: PLW0603 - the scaler in use is a fact of the process
    _current = None
    for name, (ours, original) in _replaced.items():
        if _scaler().__dict__[name] is ours:  # else somebody has wrapped it since, and it goes on calling the original
            setattr(_scaler(), name, original)


def _scale(original: Method) -> Method:
    def scale(self: Any, *args: Any, **kwargs: Any) -> Any:
        global _current  # noqa: PLW0603
        result = original(self, *args, **kwargs)
        _current = weakref.ref(self) if _watched and self.is_enabled() else None
        return result

    return scale


def _step(original: Method) -> Method:
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        listeners = [listener for watched, listener in _watched if watched is optimizer]
        for listener in listeners:
            listener.scaled_began()
        result = original(self, optimizer, *args, **kwargs)
        for listener in listeners:
            listener.scaled_ended()
        return result

    return step


def _update(original: Method) -> Method:
    def update(self: Any, *args: Any, **kwargs: Any) -> Any:
        global _current  # noqa: PLW0603
        _current = None
        return original(self, *args, **kwargs)

    return update
