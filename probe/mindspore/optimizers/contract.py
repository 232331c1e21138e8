"""The contract of a kind of optimizer: everything that MindSpore's optimizers do in different ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from probe.core.backend.protocols import Adam, Remove, StepListener


class Optimizers(Protocol):
    """One kind of optimizer: a module of plain functions. To add one, write the module, and a line in
    :data:`probe.mindspore.optimizers.table.OPTIMIZERS`."""

    def knows(self, optimizer: Any) -> bool:
        """Whether ``optimizer`` is of this kind."""

    def owned(self, optimizer: Any) -> Sequence[Any]:
        """The parameters that ``optimizer`` updates."""

    def state(self, optimizer: Any, parameter: Any) -> Mapping[str, Any]:
        """The optimizer's tensors for ``parameter``, by torch's names."""

    def state_names(self, optimizer: Any) -> Mapping[str, str]:
        """MindSpore's name for each kind of state, where it differs."""

    def adam(self, optimizer: Any) -> Callable[[Any], Adam | None]:
        """The hyperparameters with which ``optimizer`` updates each parameter, if it works as Adam does."""

    def on_step(self, optimizer: Any, listener: StepListener) -> Remove:
        """Calls ``listener`` at every training step of ``optimizer``."""
