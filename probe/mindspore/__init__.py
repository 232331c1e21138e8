"""probe for MindSpore: ``from probe.mindspore import TrainerMon``."""

from probe.core.stopping import TrainingStopped
from probe.mindspore.adapter import TrainerMon

__all__ = ["TrainerMon", "TrainingStopped"]
