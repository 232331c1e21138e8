"""Callback for the Hugging Face ``Trainer``, which records its numbers with ``monitor.log``."""

from __future__ import annotations

from typing import Any

from probe.core.errors import missing
from probe.core.transformers.loss_monitor import RunLog

try:
    from transformers import TrainerCallback
except ImportError as absent:
    raise ImportError(missing("HuggingFaceCallback", "transformers", "parallel")) from absent

NAMES = {"loss": "loss", "learning_rate": "learning_rate", "grad_norm": "grad_norm", "eval_loss": "val_loss"}
"""Numbers of the Trainer's logs, and their names here."""


class HuggingFaceCallback(TrainerCallback):
    """Callback that logs loss, learning rate, gradient norm and the loss of evaluations whenever the Trainer does
    (``logging_steps``).

    Args:
        monitor: receives the numbers, such as a ``TrainerMon``.
    """

    def __init__(self, monitor: RunLog) -> None:
        self._monitor = monitor

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
        values = {NAMES[name]: value for name, value in (logs or {}).items() if name in NAMES}
        if values:
            self._monitor.log_ended(**values)
