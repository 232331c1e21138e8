"""``MFLossMonitor`` and ``TrainingStateMonitor`` of MindSpore Transformers, for training loops of PyTorch.

::

    callbacks = from_yaml("train.yaml").attach(model, optimizer)
    for tokens in loader:
        ...
        callbacks.step_end(loss=loss, grad_norm=norm)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from probe.core.transformers_monitor import LossMonitoring, StateMonitoring, make_callbacks
from probe.pytorch.adapter import ADAPTER, TrainerMon


class MFLossMonitor(LossMonitoring):
    """Monitor of the loss. See :class:`probe.core.transformers.loss_monitor.LossMonitoring`."""

    framework = ADAPTER

    def attach(self, model: Any, optimizer: Any) -> None:  # noqa: ARG002
        """Read the learning rate of ``optimizer`` in steps that have none of their own."""
        self._optimizer = optimizer

    def step_end(self, *, learning_rate: Any = None, **values: Any) -> None:
        """End a step. See :meth:`probe.core.transformers.loss_monitor.LossMonitoring.step_end`."""
        groups = getattr(getattr(self, "_optimizer", None), "param_groups", None)
        if learning_rate is None and groups and self.section.learning_rate is None:
            learning_rate = groups[0].get("lr")
        super().step_end(learning_rate=learning_rate, **values)


class TrainingStateMonitor(StateMonitoring):
    """Monitor of the training state. See :class:`probe.core.transformers.state_monitor.StateMonitoring`."""

    framework = ADAPTER
    monitor_class = TrainerMon


class TrainingCallbacks(list[Any]):
    """The callbacks of a training loop, called together."""

    def attach(self, model: Any, optimizer: Any) -> TrainingCallbacks:
        """Attach each callback to ``model`` and ``optimizer``; return the callbacks."""
        for callback in self:
            callback.attach(model, optimizer)
        return self

    def step_begin(self) -> None:
        """Begin a step; without this call each begins where the one before ends."""
        for callback in self:
            callback.step_begin()

    def step_end(self, **values: Any) -> None:
        """End a step with ``values``: ``loss``, ``learning_rate``, ``grad_norm``, ``loss_scale``, ``overflow``,
        ``local_loss``, ``batch_size``; numbers, or tensors for which training does not wait."""
        for callback in self:
            callback.step_end(**values)

    def flush(self) -> bool:
        """Wait until every finished step is written; return False if that takes too long."""
        flushed = [callback.flush() for callback in self]
        return all(flushed)

    def close(self) -> None:
        """End every callback, and write what is left. At the end of the process this happens by itself.

        Raises:
            Exception: if the last step asks for the end of training, as ``step_end`` does one step later.
        """
        for callback in self:
            getattr(callback, "finish", callback.close)()

    def __enter__(self) -> TrainingCallbacks:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        for callback in self if kind is not None else ():
            callback.close()


def from_yaml(
    path: str | os.PathLike[str] | Mapping[str, Any], arguments: Mapping[str, Any] | None = None, **options: Any
) -> TrainingCallbacks:
    """Return the callbacks of a MindSpore Transformers configuration: ``MFLossMonitor`` if it is listed under
    ``callbacks``, ``TrainingStateMonitor`` if ``monitor_on`` is true.

    Args:
        arguments: values that replace those of the file.
        options: those of :func:`probe.core.transformers_monitor.make_callbacks`.

    Raises:
        TransformersConfigError: with every problem at once.
    """
    return TrainingCallbacks(make_callbacks(path, MFLossMonitor, TrainingStateMonitor, arguments, **options))


def __getattr__(name: str) -> Any:
    if name == "ProbeCallback":
        raise ImportError("for Hugging Face's Trainer import ProbeCallback from probe.pytorch.callbacks.huggingface")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
