"""Documented paths of :mod:`probe.core.analysis.report` until version 0.2; they go with the next one."""
