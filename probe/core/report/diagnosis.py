"""Older path of :mod:`probe.core.analysis.report.findings`."""

from probe.core.analysis.report.findings import Diagnosis, Mark

__all__ = ["Diagnosis", "Mark"]
