"""Callback for Lightning's ``Trainer``, which records its numbers with ``monitor.log``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probe.core.errors import missing
from probe.core.transformers.loss_monitor import RunLog

try:
    from lightning.pytorch import Callback
except ImportError:
    try:
        from pytorch_lightning import Callback  # type: ignore[assignment] # the same under its older name
    except ImportError as absent:
        raise ImportError(missing("LightningCallback", "lightning", "parallel")) from absent


class LightningCallback(Callback):
    """Callback that logs the loss and the learning rate of each step, and the loss of validations. It waits for no
    device.

    Args:
        monitor: receives the numbers, such as a ``TrainerMon``.
        validation: name of the metric that is logged as ``val_loss``.
    """

    def __init__(self, monitor: RunLog, validation: str = "val_loss") -> None:
        self._monitor, self._validation = monitor, validation

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        groups = trainer.optimizers[0].param_groups if trainer.optimizers else ()
        values = {"loss": loss, "learning_rate": groups[0].get("lr") if groups else None}
        self._monitor.log_ended(**{name: value for name, value in values.items() if value is not None})

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        value = trainer.callback_metrics.get(self._validation)
        if value is not None and not trainer.sanity_checking:
            self._monitor.log_ended(val_loss=value)
