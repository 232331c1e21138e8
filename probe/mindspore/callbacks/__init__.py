"""Callbacks for ``mindspore.train.Model``."""

from probe.mindspore.callbacks.run import RunCallback
from probe.mindspore.callbacks.transformers import MFLossMonitor, TrainingStateMonitor, from_yaml

__all__ = ["MFLossMonitor", "RunCallback", "TrainingStateMonitor", "from_yaml"]
