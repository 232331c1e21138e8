"""Monitor of performance: readings of GPUs, machine and training at an interval, a summary and a score."""

from probe.services.performance.monitor import PerformanceMonitor

__all__ = ["PerformanceMonitor"]
