"""The demonstration on PyTorch."""

from probe.demo.pytorch.training import PytorchTraining as begin
from probe.demo.pytorch.training import calm
from probe.pytorch import TrainerMon

__all__ = ["TrainerMon", "begin", "calm"]
