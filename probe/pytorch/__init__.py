"""probe for PyTorch: ``from probe.pytorch import TrainerMon``."""

from probe.core.stopping import TrainingStopped
from probe.pytorch.adapter import TrainerMon

__all__ = ["TrainerMon", "TrainingStopped"]
