"""Demonstration on PyTorch."""

from probe.demo.pytorch.faults import inject, places
from probe.demo.pytorch.training import PytorchTraining, few_threads
from probe.pytorch import TrainerMon

begin = PytorchTraining

__all__ = ["TrainerMon", "begin", "few_threads", "inject", "places"]
