"""Training whose writer does not come back, in a real process with a writer that waits for a FIFO; and training for
whose writer the system allows no thread."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.pytorch.test_endings import ENDLESS, directory_of, manifest_of, run, running, steps_of
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
config = {**EVERYTHING, "format": ["csv", "api"], "when_queue_full": "drop", "alert": {"rules": []}}
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


FULL = """
def refuse(*_: object) -> None:
    raise RuntimeError("can't start new thread")

import json, threading
threading._start_new_thread = threading._start_joinable_thread = refuse
monitor = TrainerMon({**EVERYTHING, "format": ["csv", "parquet"], "run": {"enable": True}, "alert": {"rules": []}})
attach()
for _ in range(3):
    step()
monitor.stop()
say(json.dumps(monitor.faults))
"""


def test_training_writes_where_no_thread_can_be_started(output_dir: Path) -> None:
    """With a full process table a monitor is attached all the same; every step is written, and the lack is counted."""
    ended = run(FULL, output_dir)
    assert ended.returncode == 0
    assert steps_of(read(directory_of(output_dir)), "param_updated") == {0, 1, 2}
    assert set(json.loads(ended.stdout)) == {"delivery: RuntimeError", "run state: RuntimeError"}
    assert manifest_of(output_dir)["faults"]["delivery: RuntimeError"] >= 1
