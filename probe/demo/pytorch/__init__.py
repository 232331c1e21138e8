"""The demonstration on PyTorch."""

from probe.demo.pytorch.training import PytorchTraining, few_threads
from probe.pytorch import TrainerMon

begin = PytorchTraining

__all__ = ["TrainerMon", "begin", "few_threads"]
