"""Where ``csv2tensorboard_by_step`` is documented to be: ``probe.pytorch.csv2tb``."""

from probe.core.analysis.convert.csv2tb import csv2tensorboard_by_step

__all__ = ["csv2tensorboard_by_step"]
