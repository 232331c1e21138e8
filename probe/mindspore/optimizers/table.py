"""Kinds of MindSpore's optimizers: where each keeps its state, and when it takes a training step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from probe.core.backend.protocols import Adam, Remove, StepListener
from probe.mindspore.optimizers import nn_cell, torch_style


class Optimizers(Protocol):
    """Contract of a kind of optimizer: a module of plain functions. To add one, write the module, and a line in
    :data:`OPTIMIZERS`."""

    def knows(self, optimizer: Any) -> bool:
        """Return whether ``optimizer`` is of this kind."""

    def owned(self, optimizer: Any) -> Sequence[Any]:
        """Return the parameters that ``optimizer`` updates."""

    def state(self, optimizer: Any, parameter: Any) -> Mapping[str, Any]:
        """Return the optimizer's tensors for ``parameter``, by torch's names."""

    def state_names(self, optimizer: Any) -> Mapping[str, str]:
        """Return MindSpore's name for each kind of state, where it differs."""

    def adam(self, optimizer: Any) -> Callable[[Any], Adam | None]:
        """Return the hyperparameters with which ``optimizer`` updates each parameter, if it works as Adam does."""

    def learning_rate(self, optimizer: Any) -> object:
        """Return the learning rate of the first group of parameters at the update that is about to begin."""

    def on_step(self, optimizer: Any, listener: StepListener) -> Remove:
        """Call ``listener`` at every training step of ``optimizer``."""


OPTIMIZERS: dict[str, Optimizers] = {
    "torch_style": torch_style,
    "nn_cell": nn_cell,
}
"""Every kind; the first one that knows an object is used. To add one, add a line here."""


def _kind(optimizer: Any) -> Optimizers:
    return next(kind for kind in OPTIMIZERS.values() if kind.knows(optimizer))


def known(optimizer: Any) -> bool:
    """Return whether there is a kind for ``optimizer``."""
    return any(kind.knows(optimizer) for kind in OPTIMIZERS.values())


def on_step(optimizer: Any, listener: StepListener) -> Remove:
    """Call ``listener`` at every training step of ``optimizer``."""
    return _kind(optimizer).on_step(optimizer, listener)


def state(optimizer: Any, parameter: Any) -> Mapping[str, Any]:
    """Return the optimizer's tensors for ``parameter``, by torch's names."""
    return _kind(optimizer).state(optimizer, parameter)


def adam(optimizer: Any) -> Callable[[Any], Adam | None]:
    """Return the hyperparameters with which ``optimizer`` updates each parameter, if it works as Adam does."""
    return _kind(optimizer).adam(optimizer)


def learning_rate(optimizer: Any) -> object:
    """Return the learning rate of the first group of parameters at the update that is about to begin."""
    return _kind(optimizer).learning_rate(optimizer)


def state_names(optimizer: Any) -> Mapping[str, str]:
    """Return MindSpore's name for each kind of state, where it differs."""
    return _kind(optimizer).state_names(optimizer)


def owned(optimizer: Any) -> list[Any]:
    """Return the parameters that ``optimizer`` updates."""
    return list(_kind(optimizer).owned(optimizer))
