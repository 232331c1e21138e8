"""Demonstration on MindSpore."""

from probe.demo.mindspore.faults import inject, places
from probe.demo.mindspore.training import MindsporeTraining, few_threads
from probe.mindspore import TrainerMon

begin = MindsporeTraining

__all__ = ["TrainerMon", "begin", "few_threads", "inject", "places"]
