"""Callback for Composer's ``Trainer``: attaches a monitor at ``Event.FIT_START``, and records each batch's loss."""

from __future__ import annotations

from typing import Any

from probe.core.errors import missing
from probe.launch.trainer_run import Watching, harmless
from probe.pytorch.adapter import TrainerMon

try:
    from composer.core import Callback
except ImportError as absent:
    raise ImportError(missing("ComposerCallback", "mosaicml", "parallel")) from absent

TOTAL = "loss/train/total"
"""Loss of a batch over its microbatches, as Composer logs it."""


class ComposerCallback(Watching, Callback):
    """Callback that watches a Trainer's training: ``Trainer(..., callbacks=[ProbeCallback("monitor.json")])``.

    Arguments are those of :class:`~probe.launch.trainer_run.Watching`.
    """

    monitor_class = TrainerMon

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
