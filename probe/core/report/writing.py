"""Older path of :mod:`probe.core.analysis.report.write`."""

from probe.core.analysis.report.write import write_report

__all__ = ["write_report"]
