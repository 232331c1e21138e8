"""Training that is ended while a writer does not come back: in a real process, with a writer that waits for a FIFO."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.pytorch.test_endings import ENDLESS, directory_of, manifest_of, running, steps_of
from tests.tables import read

STUCK = """
from probe.core.output import run_output
from probe.core.output.sinks import SINKS

run_output.FLUSH_SECONDS = 0.5

class Stuck:
    def open(self): pass
    def close(self): pass
    def write(self, snapshot):
        if snapshot.step == 3:
            say("stuck")
            open(os.environ["STUCK_ON"], "rb").close()

SINKS["api"] = lambda context: Stuck()
config = {**EVERYTHING, "format": ["csv", "api"], "when_queue_full": "drop", "alert": {"rules": [], "grace_seconds": 1}}
monitor = TrainerMon({**config, "step_count_per_record": 100000})
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_writer_that_is_stuck_does_not_keep_training_from_ending(
    output_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The process ends as it would without us, after a bounded time; what could not be written is counted."""
    fifo = tmp_path / "nobody_writes"
    os.mkfifo(fifo)
    monkeypatch.setenv("STUCK_ON", str(fifo))
    with running(STUCK + ENDLESS, output_dir) as process:
        process.wait_for("stuck")
        process.send_signal(number)
        assert process.wait() == -number
    assert {0, 1, 2} <= steps_of(read(directory_of(output_dir)), "param_updated")
    faults = manifest_of(output_dir)["faults"]
    assert faults["delivery: steps not written before the deadline"] > 0
