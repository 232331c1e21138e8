"""Documented import path of ``csv2tensorboard_by_step``."""

from probe.core.analysis.convert.csv2tb import csv2tensorboard_by_step

__all__ = ["csv2tensorboard_by_step"]
