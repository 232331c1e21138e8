"""probe for PyTorch: ``from probe.pytorch import TrainerMon``."""

import torch

from probe.core.settings_problems import ConfigError
from probe.core.stopping import TrainingStopped
from probe.core.versions import require_version

OLDEST_TORCH = "2.4"

require_version("probe.pytorch", "torch", str(torch.__version__), OLDEST_TORCH)

from probe.pytorch.adapter import TrainerMon  # noqa: E402  # an older torch lacks what this imports

__all__ = ["ConfigError", "TrainerMon", "TrainingStopped"]
