"""The demonstration on MindSpore."""

from probe.demo.mindspore.training import MindsporeTraining as begin
from probe.demo.mindspore.training import calm
from probe.mindspore import TrainerMon

__all__ = ["TrainerMon", "begin", "calm"]
