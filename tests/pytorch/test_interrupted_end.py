"""The end of a run, interrupted: the next ``stop()``, or the end of the process, goes on with what is left."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import probe
from tests.required import require

torch = require("torch")

from probe.pytorch import TrainerMon  # noqa: E402 - only where torch is
from tests.pytorch.test_endings import directory_of, manifest_of, run, steps_of  # noqa: E402
from tests.pytorch.toys import TinyNet, X  # noqa: E402
from tests.tables import read  # noqa: E402

STEPS = 2
CONFIG: dict[str, Any] = {
    "wg_distribution": True,
    "xy_distribution": True,
    "format": ["csv", "parquet"],
    "step_count_per_record": 100,
    "run": {"enable": True},
    "alert": {"rules": []},
}
OURS = str(Path(probe.__file__).parent)
TEXTS = (
    *("core/language.py", "core/messages.py", "core/verdict.py", "core/alerting/redaction.py"),
    *("core/sentinel/run_account.py", "core/sentinel/watch_summary.py", "core/storage/run_directory.py"),
)
"""Files whose functions only make the text of the report: nothing has changed between two of a file."""
Place = tuple[str, str]
"""File and qualified name of a function."""


class Trained:
    """A model that was watched for ``STEPS`` steps, and its monitor."""

    def __init__(self) -> None:
        self.before = set(threading.enumerate())
        """Threads of earlier tests."""
        self.model = TinyNet()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.monitor = TrainerMon(CONFIG)
        self.monitor.set_monitor(self.model, 1, self.optimizer)
        for _ in range(STEPS):
            self.model(X).sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def left(self) -> dict[str, object]:
        """What a complete end does not leave."""
        hooks = [dict(part._forward_hooks) | dict(part._forward_pre_hooks) for part in self.model.modules()]
        directory = Path(str(self.monitor.output_directory))
        begun = [thread.name for thread in threading.enumerate() if thread not in self.before]
        threads = [name for name in begun if name.startswith("probe")]
        return {
            "hooks": sum(map(len, hooks)) + len(self.optimizer._optimizer_step_post_hooks),
            "threads": threads,
            "faults": self.monitor.faults,
            "steps unwritten": set(range(STEPS)) ^ steps_of(read(directory), "grad_reduced"),
            "parquet files unwritten": 1 - len(list(directory.glob("grad_reduced_*.parquet"))),
            "no end": "end_time" not in json.loads((directory / "manifest.json").read_text()),
        }


NOTHING = {"hooks": 0, "threads": [], "faults": {}, "steps unwritten": set(), "parquet files unwritten": 0}


def traced(function: Callable[[], None], visit: Callable[[Place], None]) -> None:
    """Call ``function``; call ``visit`` with each function of the package that begins on this thread meanwhile."""

    def trace(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(OURS):
            visit((code.co_filename, code.co_qualname))

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)


@pytest.mark.usefixtures("output_dir")
def test_an_end_goes_on_wherever_it_was_interrupted() -> None:
    """A Ctrl-C at the beginning of any function of the end leaves nothing undone after the next ``stop()``."""
    found = dict[Place, None]()
    traced(Trained().monitor.stop, found.setdefault)
    texts = {place[0]: place for place in found if place[0].endswith(TEXTS)}
    places = [place for place in found if texts.get(place[0], place) == place]
    assert (len(texts), len(places) > 60) == (len(TEXTS), True)
    undone = {}
    for place in places:
        trained, interrupted = Trained(), list[Place]()

        def interrupt(reached: Place, place: Place = place, interrupted: list[Place] = interrupted) -> None:
            if reached == place and not interrupted:
                interrupted.append(place)
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            traced(trained.monitor.stop, interrupt)
        trained.monitor.stop()
        if (left := trained.left()) != NOTHING | {"no end": False}:
            undone[place] = left
    assert undone == {}


@pytest.mark.usefixtures("output_dir")
def test_a_monitor_whose_end_was_interrupted_is_attached_again() -> None:
    """The end is completed before the second attachment, which has files of its own."""
    trained = Trained()
    first = Path(str(trained.monitor.output_directory))

    def interrupt(place: Place) -> None:
        if place[1].endswith("Output.close"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        traced(trained.monitor.stop, interrupt)
    trained.monitor.set_monitor(trained.model, 1, trained.optimizer)
    assert "end_time" in json.loads((first / "manifest.json").read_text())
    trained.monitor.stop()
    assert Path(str(trained.monitor.output_directory)) != first


SLOW = """
import threading
monitor = TrainerMon({"wg_distribution": True, "format": ["csv", "parquet"], "step_count_per_record": 9})
free = threading.Event()

def hold(snapshot):
    while monitor.monitoring:
        pass
    if not free.is_set():
        os.kill(os.getpid(), NUMBER)
        free.wait()

monitor.on_snapshot(hold)
attach()
step()
step()
"""
"""Two steps, the first of which is held on the delivery thread; it sends a signal once the end has begun."""


@pytest.mark.parametrize(
    "end",
    [
        "try:\n    monitor.stop()\nexcept KeyboardInterrupt:\n    free.set()\n    monitor.stop()\n",
        "try:\n    monitor.stop()\nexcept KeyboardInterrupt:\n    free.set()\n",
        "try:\n    with monitor:\n        pass\nexcept KeyboardInterrupt:\n    free.set()\n    monitor.stop()\n",
    ],
    ids=["stopped again", "process ends", "with"],
)
def test_the_files_are_finished_after_a_signal_while_they_are_waited_for(output_dir: Path, end: str) -> None:
    """By the next ``stop()``, or without one by the end of the process."""
    ended = run(SLOW.replace("NUMBER", str(int(signal.SIGINT))) + end + "say(monitor.faults)\n", output_dir)
    assert (ended.returncode, ended.stdout.strip()) == (0, "{}"), ended.stderr
    assert steps_of(read(directory := directory_of(output_dir)), "grad_reduced") == {0, 1}
    assert len(list(directory.glob("grad_reduced_*.parquet"))) == 1
    assert "end_time" in manifest_of(output_dir)


def test_a_process_that_is_terminated_while_it_ends_finishes_its_files(output_dir: Path) -> None:
    """SIGTERM within ``stop()`` goes on with the end, then ends the process."""
    script = SLOW.replace("NUMBER", str(int(signal.SIGTERM))).replace("free.wait()", "free.set()")
    ended = run(script + "monitor.stop()\n", output_dir)
    assert ended.returncode == -signal.SIGTERM, ended.stderr
    assert "end_time" in manifest_of(output_dir)
    assert len(list(directory_of(output_dir).glob("grad_reduced_*.parquet"))) == 1
