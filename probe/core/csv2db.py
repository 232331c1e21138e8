"""The documented place of the conversion to SQLite: ``from probe.core.csv2db import CSV2DBConfig, csv2db``."""

from probe.core.convert.csv2db import CSV2DBConfig, csv2db

__all__ = ["CSV2DBConfig", "csv2db"]
