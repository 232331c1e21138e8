"""The documented place of the conversion to TensorBoard: ``from probe.mindspore.csv2tb import csv2tensorboard_by_step``."""

from probe.core.convert.csv2tb import csv2tensorboard_by_step

__all__ = ["csv2tensorboard_by_step"]
