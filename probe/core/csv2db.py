"""Where ``CSV2DBConfig`` and ``csv2db`` are documented to be: ``probe.core.csv2db``."""

from probe.core.analysis.convert.csv2db import CSV2DBConfig, csv2db

__all__ = ["CSV2DBConfig", "csv2db"]
