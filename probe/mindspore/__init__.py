"""probe for MindSpore: ``from probe.mindspore import TrainerMon``."""

import mindspore

from probe.core.settings_problems import ConfigError
from probe.core.stopping import TrainingStopped
from probe.core.versions import require_version

OLDEST_MINDSPORE = "2.4.10"

require_version("probe.mindspore", "mindspore", str(mindspore.__version__), OLDEST_MINDSPORE)

from probe.mindspore.adapter import TrainerMon  # noqa: E402  # after the check

__all__ = ["ConfigError", "TrainerMon", "TrainingStopped"]
