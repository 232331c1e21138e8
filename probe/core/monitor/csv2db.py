"""The path from which scripts of earlier tools import ``CSV2DBConfig`` and ``csv2db``."""

from probe.core.analysis.convert.csv2db import CSV2DBConfig, csv2db

__all__ = ["CSV2DBConfig", "csv2db"]
