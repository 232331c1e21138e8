"""Callbacks for ``mindspore.train.Model``."""

from probe.launch.imports import after_import
from probe.mindspore.callbacks.run import RunCallback
from probe.mindspore.callbacks.training import ProbeCallback, register
from probe.mindspore.callbacks.transformers import MFLossMonitor, TrainingStateMonitor, from_yaml

__all__ = ["MFLossMonitor", "ProbeCallback", "RunCallback", "TrainingStateMonitor", "from_yaml"]

after_import("mindformers.tools.register", register)
