"""Callback that records the loss and other outputs of a training cell with ``monitor.log``."""

from __future__ import annotations

import logging
from typing import Any, Protocol

import mindspore
from mindspore.train import Callback

from probe.core.door import FaultCounter
from probe.core.faults import Faults
from probe.core.monitor import arguments
from probe.core.naming import LEARNING_RATE, LOSS
from probe.launch.trainer_run import harmless
from probe.mindspore.adapter import TrainerMon
from probe.mindspore.callbacks.outputs import learning_rate_of, optimizer_of, values_of

_log = logging.getLogger("probe")


class Made(type):
    """Type of callbacks that ``Model.train`` also takes by their class, as trainers of PyTorch do: an object is made of
    it. MindSpore asks for the class of each callback, and enters it."""

    @property  # type: ignore[misc]  # that of a class is writable
    def __class__(cls) -> type:
        return cls

    def __enter__(cls) -> Any:
        return cls()

    def __exit__(cls, *_: object) -> None:
        """Have no effect: the object ends with training."""


class RunReceiver(Protocol):
    """Receiver of numbers of the run, such as a ``TrainerMon``."""

    def log_ended(self, **values: Any) -> None:
        """Record ``values`` of the step in progress."""


class RunCallback(Callback, metaclass=Made):
    """Callback that logs loss, loss scale, learning rate and global norm of each step. It places no hook and waits for
    no device. It also works in graph mode, where it counts the steps of a monitor without signals.

    If the dataset is sunk to the device, the callback is called once for many steps, which count as one in graph mode;
    one warning states that.

    Args:
        monitor: receives the values, such as a ``TrainerMon``.
    """

    @arguments.checked("monitor")
    def __init__(self, monitor: RunReceiver) -> None:
        super().__init__()
        self._monitor = monitor
        self._faults, self._warned = Faults(), False

    @property
    def faults(self) -> FaultCounter:
        return self._faults

    @harmless
    def on_train_step_end(self, run_context: Any) -> None:
        params = run_context.original_args()
        compiled = mindspore.get_context("mode") == mindspore.GRAPH_MODE
        values = values_of(params.net_outputs)
        if compiled and isinstance(self._monitor, TrainerMon):
            self._monitor.end_compiled_step(values.get(LOSS))
        self._warn_of_sinking(params, compiled)
        values.setdefault(LEARNING_RATE, learning_rate_of(optimizer_of(params)))
        values.pop("overflow", None)
        if numbers := {name: value for name, value in values.items() if value is not None}:
            self._monitor.log_ended(**numbers)

    def _warn_of_sinking(self, params: Any, compiled: bool) -> None:
        if not self._warned and params.dataset_sink_mode and int(params.batch_num) > 1:
            self._warned = True
            _log.warning(
                "%s: the dataset is sunk to the device, so that %d steps end together: %s the numbers of the last; "
                "dataset_sink_mode=False shows each",
                type(self).__name__,
                int(params.batch_num),
                "they are recorded as one step, with" if compiled else "of these steps, the run has only",
            )
