"""From a fault in training to the command that undoes it: every part as a real process, each killed in the middle."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, TypeVar

import pytest

from probe.core.control.command_requests import acknowledgements, folder_of
from tests.required import require, require_program

require("torch")
require("starlette")
require("prometheus_client")
ROOT = Path(__file__).resolve().parents[2]
SECONDS = 240.0
Found = TypeVar("Found")


def loaded(path: Path) -> Any:
    """The script ``path`` as a module."""
    specification = spec_from_file_location(path.stem, path)
    assert specification is not None
    assert specification.loader is not None
    module = module_from_spec(specification)
    sys.modules[path.stem] = module
    specification.loader.exec_module(module)
    return module


class Receiver(ThreadingHTTPServer):
    """Receiver of Alertmanager's notices."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.notices: list[Any] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"

    def states(self, alert: str) -> list[str]:
        """States of an alert in the order of its notices."""
        alerts = (each for notice in list(self.notices) for each in notice["alerts"])
        return [each["status"] for each in alerts if each["labels"]["alertname"] == alert]


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        self.server.notices.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Write nothing."""


def wait_for(check: Callable[[], Found]) -> Found:
    """What ``check`` returns once it is true; an error counts as nothing yet."""
    deadline, problem = time.monotonic() + SECONDS, "nothing came"
    while time.monotonic() < deadline:
        try:
            if found := check():
                return found
        except (OSError, KeyError, ValueError) as error:
            problem = repr(error)
        time.sleep(0.05)
    raise AssertionError(problem)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        yield server
        server.shutdown()


def test_a_fault_is_undone_by_a_command_before_one_step(tmp_path: Path, receiver: Receiver) -> None:
    """Weights become NaN: Prometheus sees it, Alertmanager notifies, remediation requests two commands, every rank
    carries both out before the same step, the history says so, the loss is a number again, and the resolved notice
    comes. Before that each server was killed and started again, and training went on. No job is without a target."""
    require_program("prometheus")
    require_program("prometheus-node-exporter", "node_exporter")
    require_program("prometheus-alertmanager", "alertmanager")
    stack = loaded(ROOT / "resources" / "stack.py").Stack(
        tmp_path / "stack", step_seconds=0.05, fault_at=None, webhook=receiver.address
    )
    settings = stack.folder / "prometheus" / "prometheus.yml"
    often = settings.read_text("utf-8").replace("interval: 15s", "interval: 1s").replace("timeout: 10s", "timeout: 1s")
    settings.write_text(often, encoding="utf-8")  # else the last target is seen after 15 s
    with stack.running():
        training = stack.parts["training"].process
        wait_for(lambda: len(stack.query("probe_training_step > 0")) == 2)
        (step,) = (value for _, value in stack.query("max(probe_training_step)"))
        servers = [stack.parts[name] for name in ("exporter", "remediation", "alertmanager", "prometheus")]
        for server in servers:
            server.kill()
            server.start()
        for server in servers:
            server.wait_until_ready()
        wait_for(lambda: stack.query(f"min(probe_training_step) > {step + 20}"))

        stack.fault.touch()
        wait_for(lambda: "firing" in receiver.states("TrainingLossNaN"))
        done = wait_for(lambda: [each for each in stack.history() if each["state"] == "done"])
        wait_for(lambda: "resolved" in receiver.states("TrainingLossNaN"))
        assert stack.query("count(probe_training_loss == probe_training_loss)")[0][1] == 2
        assert training.poll() is None
        jobs = ("probe-exporter", "node-exporter", "alertmanager", "prometheus")
        wait_for(lambda: all(stack.query(f'up{{job="{job}"}}') for job in jobs))  # else JobWithoutTargets is pending

    assert done[0]["alert_name"] == "TrainingLossNaN"
    folder = folder_of(stack.configuration)
    first, second = (acknowledgements(folder, name) for name in sorted(path.stem for path in folder.glob("*.json")))
    for answers in (first, second):
        assert [(each.rank, each.state) for each in answers] == [(0, "done"), (1, "done")]
        assert len({each.step for each in answers}) == 1
    lines = [line for line in stack.parts["training"].log.read_text("utf-8").splitlines() if line.startswith("rank ")]
    assert sum("reduce_learning_rate: learning rate 0.05" in line for line in lines) == 2
    assert all(part.process is not None and part.process.poll() is not None for part in stack.parts.values())
