"""Callback that records the loss and other outputs of a training cell with ``monitor.log``."""

from __future__ import annotations

from typing import Any, Protocol

from mindspore.train import Callback

from probe.mindspore.callbacks.outputs import learning_rate_of, optimizer_of, values_of


class RunReceiver(Protocol):
    """Receiver of numbers of the run, such as a ``TrainerMon``."""

    def log_ended(self, **values: Any) -> None:
        """Record ``values`` of the step in progress."""


class RunCallback(Callback):
    """Callback that logs loss, loss scale, learning rate and global norm of each step. It places no hook, so that it
    also works in graph mode, and waits for no device.

    Args:
        monitor: receives the values, such as a ``TrainerMon``.
    """

    def __init__(self, monitor: RunReceiver) -> None:
        super().__init__()
        self._monitor = monitor

    def on_train_step_end(self, run_context: Any) -> None:
        params = run_context.original_args()
        values = values_of(params.net_outputs)
        values.setdefault("learning_rate", learning_rate_of(optimizer_of(params)))
        values.pop("overflow", None)
        self._monitor.log_ended(**{name: value for name, value in values.items() if value is not None})
