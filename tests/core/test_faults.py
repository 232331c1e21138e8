"""Faults are counted and logged, without flooding the log."""

from __future__ import annotations

import pytest

from probe.core.faults import MOST_LOGGED, Faults


def test_many_different_faults_do_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Each is counted; the first ones are logged with their tracebacks, and one line reports further ones."""
    faults = Faults()
    for number in range(10 * MOST_LOGGED):
        for _ in range(2):
            faults.note(f"actv of layer{number}", ValueError("odd"))
    assert faults.counts == {f"actv of layer{number}: ValueError": 2 for number in range(10 * MOST_LOGGED)}
    assert len(caplog.records) == MOST_LOGGED + 1
    assert "monitor.faults" in caplog.messages[-1]
