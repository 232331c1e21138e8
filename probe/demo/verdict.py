"""Comparison of the diagnosis with the injected fault: the one place that knows both."""

from __future__ import annotations

from probe.demo.diagnosis import FirstBad
from probe.demo.faults import Injection


def matches(injection: Injection | None, diagnosis: FirstBad | None) -> bool:
    """Return whether the diagnosis names the broken module or parameter and the step, or nothing if none was broken."""
    if injection is None or diagnosis is None:
        return injection is None and diagnosis is None
    return diagnosis.first.step == injection.step and injection.place in (diagnosis.module, diagnosis.row)
