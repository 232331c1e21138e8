"""Faults are counted and logged, without flooding the log."""

from __future__ import annotations

import errno

import pytest

from probe.core.door import attempt
from probe.core.faults import MOST_LOGGED, Faults, Misfit


def test_many_different_faults_do_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Each is counted; the first ones are logged with their tracebacks, and one line reports further ones."""
    faults = Faults()
    for number in range(10 * MOST_LOGGED):
        for _ in range(2):
            faults.note(f"actv of layer{number}", ValueError("odd"))
    assert faults.counts == {f"actv of layer{number}: ValueError": 2 for number in range(10 * MOST_LOGGED)}
    assert len(caplog.records) == MOST_LOGGED + 1
    assert "monitor.faults" in caplog.messages[-1]


def test_what_does_not_fit_has_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """The place in the package is of no use: the program's tensor is another than expected."""

    def raising(error: Exception) -> None:
        raise error

    for error in (Misfit("odd"), OSError(errno.ENOSPC, "full", "a.csv"), ValueError("odd")):
        attempt(Faults(), "actv of fc", raising, error)
    assert [record.exc_info is None for record in caplog.records] == [True, True, False]
    assert "OSError: a.csv: there is no space left: free some, or choose another folder" in caplog.messages[1]


def test_faults_count_by_place_and_kind() -> None:
    """Faults are counted by where and what; the text of an error does not make another kind."""
    faults = Faults()
    for number in range(3):
        faults.note("sink", OSError(f"number {number}"))
    faults.note("sink", ValueError("another"))
    faults.lost("rows", 5)
    assert faults.counts == {"sink: OSError": 3, "sink: ValueError": 1, "rows": 5}
