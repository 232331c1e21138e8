"""probe for PyTorch: ``from probe.pytorch import TrainerMon``."""

from probe.pytorch.adapter import TrainerMon

__all__ = ["TrainerMon"]
