"""Alerts of a training run in a process of its own, as a real receiver gets them."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.required import require

require("torch")
require("httpx")

from tests.core.alerting.receivers import Receiver, serving  # noqa: E402
from tests.user_scripts import TORCH, Running, running  # noqa: E402
from tests.waiting import wait_for  # noqa: E402

SCRIPT = """
import json, os, sys, time
import torch
from probe.pytorch import TrainerMon

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
monitor = TrainerMon(json.loads(sys.argv[1]))
monitor.set_monitor(model, 1, optimizer)
print("began", flush=True)

def step(factor=1.0):
    loss = model(torch.ones(3, 4)).square().mean() * factor
    loss.backward()
    monitor.log(loss=loss)
    optimizer.step()
    optimizer.zero_grad()

for _ in range(20):
    step()
"""


class Job:
    """A training script with a receiver of its alerts."""

    def __init__(self, script: Running, receiver: Receiver) -> None:
        self.script, self._receiver = script, receiver

    def alerts(self, kind: str = "") -> list[dict[str, Any]]:
        """The alerts that were received, of one kind if it is named."""
        sent = [alert for request in list(self._receiver.requests) for alert in request.body["alerts"]]
        return [alert for alert in sent if not kind or alert["kind"] == kind]

    def wait(self, kind: str, number: int = 1) -> list[dict[str, Any]]:
        """Wait for as many alerts of a kind."""
        wait_for(lambda: len(self.alerts(kind)) >= number)
        return self.alerts(kind)

    def ended(self) -> int:
        """The exit code."""
        return self.script.wait()


@contextmanager
def job(script: str, output: Path, **config: Any) -> Iterator[Job]:
    """Train with ``script`` after twenty healthy steps."""
    receiver = Receiver()
    with serving(receiver):
        channel = {"channel": "http", "severity": "info", "args": {"url": receiver.url()}}
        settings = {"wg_distribution": True, "format": "csv", "alert": {"channels": [channel], "group_seconds": 0}}
        arguments = json.dumps(settings | config)
        with running(
            SCRIPT + script, output / "script", arguments, modules=TORCH, MONITOR_OUTPUT_DIR=str(output)
        ) as training:
            yield Job(training, receiver)


def test_a_nan_names_its_place(tmp_path: Path) -> None:
    """The first bad tensor, its rank and step, once, with the command that opens its cell; then the end of training."""
    with job("step(float('nan')); monitor.stop()", tmp_path) as training:
        training.wait("end")
        assert training.ended() == 0
        (finding,) = [alert for alert in training.alerts() if "first seen in bias, step 20" in alert["title"]]
    assert (finding["severity"], finding["labels"]["step"], finding["labels"]["rank"]) == ("critical", "20", "0")
    assert "the layer in which it began cannot be named: activations were not recorded" in finding["text"]
    assert "open: probe view '" in finding["text"]
    assert "signal=grad_unreduced&op=norm&row=bias&step=20'" in finding["text"]


def test_an_exception_is_sent_and_raised_again(tmp_path: Path) -> None:
    """With its traceback, without the secrets in it; the exit code is as without a monitor."""
    with job("raise ValueError('no room, password=hunter2')", tmp_path) as training:
        assert training.ended() == 1
        (alert,) = training.alerts("exception")
    assert alert["labels"]["step"] == "20"
    assert "ValueError" in alert["text"]
    assert "hunter2" not in json.dumps(training.alerts())


def test_sigterm_is_sent_and_ends_the_process(tmp_path: Path) -> None:
    """Within the time of grace; rows and numbers of all steps are there."""
    # One long sleep would not end if the signal came just before it.
    with job("print('trained', flush=True)\nwhile True:\n    time.sleep(0.05)\n", tmp_path) as training:
        assert [training.script.stdout.readline().strip() for _ in range(2)] == ["began", "trained"]
        training.script.send_signal(signal.SIGTERM)
        assert training.ended() == -signal.SIGTERM
        (alert,) = training.alerts("sigterm")
    assert alert["labels"]["step"] == "20"
    (path,) = tmp_path.glob("*/run_0-99.csv")
    assert ",loss,19," in path.read_text(encoding="utf-8")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_run_that_stands_still_is_reported_with_its_stack(tmp_path: Path) -> None:
    """One alert with the line where it waits, stacks in a file, and a notice when it goes on."""
    hang = {"enable": True, "floor_seconds": 1.0, "startup_seconds": 60.0}
    script = """
def wait_for_the_file():
    while not os.path.exists(sys.argv[2] if len(sys.argv) > 2 else os.environ["MONITOR_OUTPUT_DIR"] + "/go"):
        time.sleep(0.05)
for _ in range(20):
    step()
wait_for_the_file()
for _ in range(40):
    step(); time.sleep(0.01)
monitor.stop()
"""
    with job(script, tmp_path, run={"job": "toy", "hang": hang}) as training:
        (alert,) = training.wait("hang")
        assert "wait_for_the_file" in alert["text"]
        (dump,) = tmp_path.glob("hang/*/rank0.txt")
        assert "wait_for_the_file" in dump.read_text(encoding="utf-8")
        (tmp_path / "go").touch()
        both = training.wait("hang", 2)
        assert [each["resolved"] for each in both] == [False, True]
        assert training.ended() == 0
