"""Kinds of MindSpore's optimizers: where each keeps its state, and when it takes a training step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from probe.core.backend.optimizer_kinds import OptimizerKind, chooser, dispatched
from probe.mindspore.optimizers import nn_cell, torch_style


class Optimizers(OptimizerKind, Protocol):
    """Contract of a kind of optimizer. To add one, write the module, and a line in :data:`OPTIMIZERS`."""

    def state_names(self, optimizer: Any) -> Mapping[str, str]:
        """Return MindSpore's name for each kind of state, where it differs."""

    def learning_rate(self, optimizer: Any) -> object:
        """Return the learning rate of the first group of parameters at the update that is about to begin."""


OPTIMIZERS: dict[str, Optimizers] = {
    "torch_style": torch_style,
    "nn_cell": nn_cell,
}
"""Every kind; the first one that knows an object is used. To add one, add a line here."""


def known(optimizer: Any) -> bool:
    """Return whether there is a kind for ``optimizer``."""
    return any(kind.knows(optimizer) for kind in OPTIMIZERS.values())


_kind = chooser(OPTIMIZERS.values())
adam, learning_rate, on_step, owned, state, state_names = (
    dispatched(_kind, name) for name in ("adam", "learning_rate", "on_step", "owned", "state", "state_names")
)
