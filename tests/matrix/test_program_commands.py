"""Commands to a program, on every framework."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

import pytest

from probe.core.control.command_requests import ReduceBatchSize, acknowledgements, command_of, folder_of, request
from tests.matrix.harness import Harness, train_step
from tests.matrix.models import X, tiny_net
from tests.matrix.watching import LR, MOMENTUM

SECONDS = 120.0


@pytest.mark.parametrize("written", ["api", "csv"])
def test_a_program_gets_a_command_and_answers(framework: Harness, tmp_path: Path, written: str) -> None:
    """It comes between two steps, as a type; what the program says of it lies beside the request."""
    file = tmp_path / "monitor.json"
    file.write_text(json.dumps({"format": written, "ops": ["norm"]}))
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=LR, momentum=MOMENTUM)
    loop, monitor = framework.loop(model, optimizer), framework.TrainerMon(file)
    monitor.set_monitor(model, 1, optimizer)
    sent = request(file, command_of("reduce_batch_size", {"factor": 0.25}), "test")
    deadline, commands = time.monotonic() + SECONDS, monitor.commands()
    while not commands:
        assert time.monotonic() < deadline
        train_step(loop, framework.tensor(X))
        commands = monitor.commands(ReduceBatchSize)
    (command,) = commands
    assert command == ReduceBatchSize(factor=0.25)
    with command:
        before = monitor.step
    monitor.stop()
    (answer,) = acknowledgements(folder_of(file), sent)
    assert (answer.rank, answer.state, answer.step) == (0, "done", before)
    assert monitor.faults == {}
    assert monitor.commands() == []


def test_a_configuration_that_is_no_file_has_no_commands(framework: Harness, caplog: pytest.LogCaptureFixture) -> None:
    """That is said once, and training goes on."""
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=LR, momentum=MOMENTUM)
    monitor = framework.TrainerMon({"format": "api"})
    assert monitor.commands() == []
    monitor.set_monitor(model, 1, optimizer)
    with caplog.at_level(logging.WARNING, logger="probe"):
        assert monitor.commands() == monitor.commands() == []
    monitor.stop()
    assert sum(message.startswith("commands: none will come") for message in caplog.messages) == 1
