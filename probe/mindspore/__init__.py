"""probe for MindSpore: ``from probe.mindspore import TrainerMon``."""

import logging

import mindspore

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

OLDEST_MINDSPORE = "2.4.10"
DAMAGED = "2.7.0"
"""Version that frees memory twice, with or without a monitor (on a CPU: where a hook of a parameter keeps gradients
until the end of the step, while ``set_data`` replaces the parameter's value). 2.7.1 does not."""

require_version("probe.mindspore", "mindspore", str(mindspore.__version__), OLDEST_MINDSPORE)
if str(mindspore.__version__).split("+")[0] == DAMAGED:
    logging.getLogger("probe").warning(
        "MindSpore %s may free memory twice where a parameter's value is replaced while gradients are watched: that "
        "ends the process; expected 2.7.1 or later",
        DAMAGED,
    )

from probe.mindspore.adapter import TrainerMon  # noqa: E402  # after the check
from probe.mindspore.callbacks import MFLossMonitor, ProbeCallback, TrainingStateMonitor, from_yaml  # noqa: E402

__all__ = [
    "ConfigError",
    "EnableGradientAccumulation",
    "MFLossMonitor",
    "ProbeCallback",
    "ReduceBatchSize",
    "ReduceDataloaderWorkers",
    "ReduceLearningRate",
    "RollbackCheckpoint",
    "TrainerMon",
    "TrainingStateMonitor",
    "TrainingStopped",
    "from_yaml",
]
