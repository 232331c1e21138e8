"""Import path of ``csv2tensorboard_by_step`` in scripts of earlier tools."""

from probe.core.analysis.convert.csv2tb import csv2tensorboard_by_step

__all__ = ["csv2tensorboard_by_step"]
