"""Import path of :class:`PerformanceMonitor` by its older name."""

from probe.services.performance.monitor import PerformanceMonitor

__all__ = ["PerformanceMonitor"]
