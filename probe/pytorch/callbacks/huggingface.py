"""Callback for the Hugging Face ``Trainer``: attaches a monitor, and records the Trainer's numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probe.core.errors import missing
from probe.core.naming import GRAD_NORM, LEARNING_RATE, LOSS, VAL_LOSS
from probe.launch.trainer_run import Watching, harmless
from probe.pytorch.adapter import TrainerMon

try:
    from transformers import TrainerCallback
except ImportError as absent:
    raise ImportError(missing("HuggingFaceCallback", "transformers", "parallel")) from absent

NAMES = {"loss": LOSS, "learning_rate": LEARNING_RATE, "grad_norm": GRAD_NORM, "eval_loss": VAL_LOSS}
"""Numbers of the Trainer's logs, and their names here."""


def numbers_of(logs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the numbers of the Trainer's logs by their names here."""
    return {NAMES[name]: value for name, value in (logs or {}).items() if name in NAMES}


class HuggingFaceCallback(Watching, TrainerCallback):
    """Callback that watches a Trainer's training: ``Trainer(..., callbacks=[ProbeCallback("monitor.json")])``.

    It attaches a monitor when training begins and stops it when training ends. Loss, learning rate, gradient norm
    (before clipping) and the loss of evaluations are recorded whenever the Trainer logs them (``logging_steps``), for
    the step that ended last; the loss is the mean since the Trainer's log before.

    Arguments are those of :class:`~probe.launch.trainer_run.Watching`.
    """

    monitor_class = TrainerMon

    def on_train_begin(
        self,
        args: Any,
        state: Any,
        control: Any,  # noqa: ARG002
        model: Any = None,
        optimizer: Any = None,
        **_: Any,
    ) -> None:
        self._run.begin([model], [optimizer], args.gradient_accumulation_steps, state.global_step)

    @harmless
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
        self._run.log_ended(**numbers_of(logs))

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self._run.end()


ProbeCallback = HuggingFaceCallback
"""Name of the callback, the same for every trainer."""
