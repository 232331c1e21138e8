"""Callback for Lightning's ``Trainer``: attaches a monitor, and records the metrics of each step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probe.core.errors import missing
from probe.core.monitor import arguments
from probe.core.naming import LOSS, VAL_LOSS
from probe.launch.trainer_run import NumberReceiver, Source, TrainerRun, Watching, harmless
from probe.pytorch.adapter import TrainerMon

try:
    from lightning.pytorch import Callback
except ImportError:
    try:
        from pytorch_lightning import Callback  # type: ignore[assignment] # the same under its older name
    except ImportError as absent:
        raise ImportError(missing("LightningCallback", "lightning", "parallel")) from absent


class LightningCallback(Watching, Callback):
    """Callback that watches a Trainer's training: ``Trainer(callbacks=[ProbeCallback("monitor.json")])``.

    It attaches a monitor when training begins, after the sanity check, and stops it when training ends. Recorded for
    each step are the loss over its micro batches and what the module has logged in them; for the step that ended last,
    what validations have logged. It waits for no device.

    Args:
        config, overrides: those of :class:`~probe.launch.trainer_run.Watching`.
        validation: name of the metric that is recorded as ``val_loss``.
    """

    monitor_class = TrainerMon

    @arguments.checked("config=None, **overrides")
    def __init__(
        self, config: Source | NumberReceiver | None = None, *, validation: str = "val_loss", **overrides: Any
    ) -> None:
        super().__init__(config, **overrides)
        self._validation = validation
        self._begin(0)

    @classmethod
    def of_environment(cls) -> LightningCallback:
        """Return the callback of a program that is watched without a line of code."""
        made = cls()
        made._run.end()
        made._run = TrainerRun(TrainerMon, automatic=True)
        return made

    def _begin(self, updates: int) -> None:
        self._updates = updates
        """Updates that the trainer has counted."""
        self._values: dict[str, Any] = {}
        """Numbers of the step in progress."""
        self._seen: dict[str, Any] = {}
        """Metrics that have been recorded: the trainer keeps them until they are logged again."""

    def setup(self, trainer: Any, pl_module: Any = None, stage: str = "") -> None:  # noqa: ARG002
        """Refuse the class in the place of an object: the trainer passes itself first."""
        if not isinstance(self, LightningCallback):
            raise TypeError("callbacks: expected an object of ProbeCallback, got the class; write ProbeCallback(...)")

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        optimizers = list(trainer.optimizers)
        self._begin(trainer.global_step)
        steps = trainer.global_step // max(len(optimizers), 1)  # each optimizer's update counts there
        self._run.begin([trainer.strategy.model], optimizers, trainer.accumulate_grad_batches, steps)

    @harmless
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if loss is not None:
            earlier = self._values.get(LOSS) if pl_module.automatic_optimization else None
            self._values[LOSS] = loss if earlier is None else earlier + loss  # divided by the number of micro batches
        self._values |= self._metrics(trainer)
        if trainer.global_step != self._updates:
            self._updates, values, self._values = trainer.global_step, self._values, {}
            self._run.log_ended(**values)

    @harmless
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        if not trainer.sanity_checking:
            values = self._metrics(trainer)
            if self._validation in values:
                values[VAL_LOSS] = values.pop(self._validation)
            self._run.log_ended(**values)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        self._run.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException | None = None) -> None:  # noqa: ARG002
        if isinstance(self, LightningCallback):  # not the trainer, where the class itself was passed to it
            self._run.end()

    def _metrics(self, trainer: Any) -> dict[str, Any]:
        """Return the metrics that were logged since the last call."""
        metrics = dict(trainer.callback_metrics)
        new = {name: value for name, value in metrics.items() if value is not self._seen.get(name)}
        self._seen = metrics
        return new


ProbeCallback = LightningCallback
"""Name of the callback, the same for every trainer."""
