"""Callback for Composer's ``Trainer``: attaches a monitor at ``Event.FIT_START``, and records each batch's loss."""

from __future__ import annotations

from typing import Any

from probe.core.door import FaultCounter
from probe.core.errors import missing
from probe.launch.sources import Source
from probe.launch.trainer_run import NumberReceiver, TrainerRun, harmless
from probe.pytorch.adapter import TrainerMon

try:
    from composer.core import Callback
except ImportError as absent:
    raise ImportError(missing("ComposerCallback", "mosaicml", "parallel")) from absent

TOTAL = "loss/train/total"
"""Loss of a batch over its microbatches, as Composer logs it."""


class ComposerCallback(Callback):
    """Callback that watches a Trainer's training: ``Trainer(..., callbacks=[ProbeCallback("monitor.json")])``.

    Args:
        config: JSON or YAML file, or a mapping with the same keys; None for what ``PROBE_CONFIG`` names, else gradients
            and alerts. A monitor that the program attaches itself: then its numbers alone are passed to it.
        overrides: keys of the configuration, which replace those of ``config``.

    Raises:
        ConfigError: naming every problem of the configuration.
    """

    def __init__(self, config: Source | NumberReceiver | None = None, **overrides: Any) -> None:
        self._run = TrainerRun(TrainerMon, config, overrides)

    @property
    def monitor(self) -> Any:
        """The monitor of the training in progress, or of the last one; None before the first."""
        return self._run.monitor

    @property
    def faults(self) -> FaultCounter:
        return self._run.faults

    def fit_start(self, state: Any, logger: Any) -> None:  # noqa: ARG002
        self._run.begin([state.model], list(state.optimizers), begun=int(state.timestamp.batch.value))

    @harmless
    def batch_end(self, state: Any, logger: Any) -> None:  # noqa: ARG002
        losses = getattr(state, "total_loss_dict", None) or {}
        self._run.log_ended(loss=losses.get(TOTAL, state.loss))  # state.loss is that of the last microbatch

    def fit_end(self, state: Any, logger: Any) -> None:  # noqa: ARG002
        self._run.end()

    def close(self, state: Any, logger: Any) -> None:  # noqa: ARG002
        self._run.end()


ProbeCallback = ComposerCallback
"""Name of the callback, the same for every trainer."""
