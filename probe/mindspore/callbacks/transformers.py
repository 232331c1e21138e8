"""``MFLossMonitor`` and ``TrainingStateMonitor`` of MindSpore Transformers, for ``mindspore.train.Model``.

::

    model.train(epochs, dataset, callbacks=from_yaml("train.yaml"))
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

import mindspore
from mindspore.train import Callback

from probe.core.naming import BATCH_SIZE, GRAD_NORM, LEARNING_RATE, LOSS
from probe.core.transformers.schema import StateSection
from probe.core.transformers_monitor import LossMonitoring, StateMonitoring, make_callbacks
from probe.mindspore.adapter import ADAPTER, TrainerMon
from probe.mindspore.callbacks.outputs import backbone_of, learning_rate_of, optimizer_of, values_of
from probe.mindspore.callbacks.run import Made
from probe.mindspore.callbacks.training import ProbeCallback
from probe.mindspore.private_api import flops_collection

_log = logging.getLogger("probe.transformers")


def _begin(core: LossMonitoring | StateMonitoring, params: Any) -> int:
    """Complete what ``core`` does not know about the training, at its first epoch; return the number that is added to
    the run's count of steps."""
    counter, begun = core.counter, int(params.cur_step_num)
    counter.steps = counter.steps or int(params.batch_num)
    epochs = int(params.cur_epoch_num) - 1
    if counter.epochs == 1:
        counter.epochs = int(params.epoch_num) + epochs
    done = max(counter.initial, int(params.get("initial_step", None) or 0), begun)
    if done < epochs * counter.steps:  # counted within its epoch
        done = epochs * counter.steps + done % counter.steps
    counter.initial = counter.step = done
    core.write_size(_dataset_size(params))
    return done - begun


def _several(params: Any) -> int:
    """Return the number of steps that end together where the dataset is sunk to the device."""
    return int(params.batch_num) if params.dataset_sink_mode else 1


def _dataset_size(params: Any) -> int:
    """Return the number of steps in an epoch of the whole dataset."""
    size = getattr(params.get("train_dataset"), "get_dataset_size", None)
    return int(size()) if size is not None else int(params.batch_num)


def _batch_size(params: Any) -> int | None:
    """Return the number of samples of a step over all devices, if the dataset has one."""
    try:
        return int(params.train_dataset.get_batch_size()) * ADAPTER.groups.world_size()
    except Exception:  # noqa: BLE001 - a dataset of another kind
        return None


def _operations(params: Any) -> float | None:
    """Return the floating-point operations of a step on this device, as the compiler counts them; None in the dynamic
    graph, and where shapes change."""
    phase = getattr(params.train_network, "current_phase", "")  # missing before anything is compiled
    if mindspore.get_context("mode") != mindspore.GRAPH_MODE or not phase:
        return None
    _, _, of_device, _, changes = flops_collection(phase)
    return None if changes else float(of_device) or None


def _dump_folder(state: StateSection) -> str:
    """Return the directory to which the compiler writes norms; have it write them, where it can."""
    folder = mindspore.get_auto_parallel_context("dump_local_norm_path")
    parallel = mindspore.get_auto_parallel_context("parallel_mode") in ("semi_auto_parallel", "auto_parallel")
    if not folder and parallel and mindspore.get_context("device_target") == "Ascend":
        mindspore.set_auto_parallel_context(dump_local_norm_path=state.dump_path, dump_local_norm=True)
    return str(folder or state.dump_path)


class MFLossMonitor(LossMonitoring, Callback, metaclass=Made):
    """Monitor of the loss. It needs no hook, so that it also works in graph mode. See
    :class:`probe.core.transformers.loss_monitor.LossMonitoring`."""

    framework = ADAPTER
    size_follows = True

    _before: int | None = None
    """Number of steps before those that the run counts; None before the first epoch."""
    _counted_operations = False

    def on_train_epoch_begin(self, run_context: Any) -> None:
        if self._before is not None:
            return
        params = run_context.original_args()
        self._before = _begin(self, params)
        self.sink_mode = bool(params.dataset_sink_mode)
        self.pipelined = mindspore.get_auto_parallel_context("pipeline_stages") > 1
        self._optimizer, self._batch = optimizer_of(params), _batch_size(params)

    def on_train_step_begin(self, run_context: Any) -> None:  # noqa: ARG002
        self.step_begin()

    def on_train_step_end(self, run_context: Any) -> None:
        params = run_context.original_args()
        if not self._counted_operations and self.flops_per_step is None:
            self.attempt("floating-point operations", lambda: setattr(self, "flops_per_step", _operations(params)))
        self._counted_operations = True
        values = values_of(params.net_outputs)
        if LEARNING_RATE not in values and self.section.learning_rate is None:
            self.attempt("learning rate", lambda: values.update(learning_rate=learning_rate_of(self._optimizer)))
        if not self.section.global_batch_size:
            values[BATCH_SIZE] = self._batch
        step = (self._before or 0) + int(params.cur_step_num)
        self.step_end(**values, step=step, several=_several(params))

    def on_train_end(self, run_context: Any) -> None:  # noqa: ARG002
        self.close()


class TrainingStateMonitor(StateMonitoring, Callback, metaclass=Made):
    """Monitor of the training state. See :class:`probe.core.transformers.state_monitor.StateMonitoring`."""

    framework = ADAPTER
    monitor_class = TrainerMon
    size_follows = True

    _before: int | None = None
    """Number of steps before those that the run counts; None before the first epoch."""

    def on_train_epoch_begin(self, run_context: Any) -> None:
        if self._before is not None:
            return
        params = run_context.original_args()
        self._before = _begin(self, params)
        self._run_context, self._batch = run_context, _batch_size(params)
        self._submitted = self.counter.initial
        self.attach(backbone_of(params), optimizer_of(params))

    def tag_name(self, name: str, parameter: Any) -> str:
        return str(getattr(parameter, "name", "")) or name

    def dump_folder(self) -> str | None:
        if mindspore.get_context("mode") != mindspore.GRAPH_MODE:
            return None
        _log.warning(
            "TrainingStateMonitor: local_norm_format, device_local_norm_format: MindSpore runs in GRAPH_MODE, in which "
            "no hook sees a gradient; recorded are the norms that MindSpore writes to dump_path, as on Ascend in the "
            "parallel mode semi_auto_parallel, and all other numbers. "
            "mindspore.set_context(mode=mindspore.PYNATIVE_MODE) records norms everywhere"
        )
        return _dump_folder(self.state)

    def on_train_step_begin(self, run_context: Any) -> None:  # noqa: ARG002
        self.step_begin()

    def on_train_step_end(self, run_context: Any) -> None:
        params = run_context.original_args()
        values = values_of(params.net_outputs)
        batch = None if self.global_batch_size else self._batch
        self.step_end(
            loss=values.get(LOSS),
            grad_norm=values.get(GRAD_NORM),
            batch_size=batch,
            step=(self._before or 0) + int(params.cur_step_num),
            several=_several(params),
        )

    def stop_training(self) -> None:
        self._run_context.request_stop()

    def on_train_end(self, run_context: Any) -> None:  # noqa: ARG002
        self.finish()


def from_yaml(
    path: str | os.PathLike[str] | Mapping[str, Any], arguments: Mapping[str, Any] | None = None, **options: Any
) -> list[Any]:
    """Return the callbacks of a MindSpore Transformers configuration: ``MFLossMonitor`` and ``ProbeCallback`` if they
    are listed under ``callbacks``, ``TrainingStateMonitor`` if ``monitor_on`` is true.

    Args:
        arguments: values that replace those of the file.
        options: those of :func:`probe.core.transformers_monitor.make_callbacks`.

    Raises:
        TransformersConfigError: with every problem at once.
    """
    return make_callbacks(
        path, MFLossMonitor, TrainingStateMonitor, arguments, **{"probe_class": ProbeCallback} | options
    )
