"""probe for PyTorch: ``from probe.pytorch import TrainerMon``."""

import torch

from probe.core.backend.versions import require_version
from probe.core.config.errors import ConfigError
from probe.core.control.command_requests import (
    EnableGradientAccumulation,
    ReduceBatchSize,
    ReduceDataloaderWorkers,
    ReduceLearningRate,
    RollbackCheckpoint,
)
from probe.core.errors import TrainingStopped

OLDEST_TORCH = "2.4"

require_version("probe.pytorch", "torch", str(torch.__version__), OLDEST_TORCH)

from probe.pytorch.adapter import TrainerMon  # noqa: E402  # an older torch lacks what this imports
from probe.pytorch.callbacks import MFLossMonitor, TrainingStateMonitor, from_yaml  # noqa: E402

__all__ = [
    "ConfigError",
    "EnableGradientAccumulation",
    "MFLossMonitor",
    "ReduceBatchSize",
    "ReduceDataloaderWorkers",
    "ReduceLearningRate",
    "RollbackCheckpoint",
    "TrainerMon",
    "TrainingStateMonitor",
    "TrainingStopped",
    "from_yaml",
]
