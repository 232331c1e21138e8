"""Identity and state of processes, as the system has them."""

from __future__ import annotations

import os
import subprocess
import sys

from probe.core.process_identity import boot, process_state

NAMED = "import ctypes; ctypes.CDLL(None).prctl(15, b') Z 1 (', 0, 0, 0); print(flush=True); input()"
"""A program with a name like the fields that follow a name."""


def test_a_process_is_known_by_its_start_whatever_its_name() -> None:
    """It is alive until it ends; until its parent fetches its status it has one, and afterwards none."""
    process = subprocess.Popen([sys.executable, "-c", NAMED], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin and process.stdout  # noqa: PT018 - for types
    process.stdout.readline()
    before = process_state(process.pid)
    assert before.alive
    assert before.state in "RSD"
    assert before.started >= process_state("self").started > 0
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    ended = process_state(process.pid)
    assert (ended.alive, ended.state, ended.started, ended.status) == (False, "Z", before.started, 9)
    process.communicate()
    assert process_state(process.pid) == ("X", -1, 0)


def test_this_process_has_one_identity() -> None:
    """By its number and as itself; the boot has a name."""
    assert process_state(os.getpid()).started == process_state("self").started
    assert len(boot()) == 36
