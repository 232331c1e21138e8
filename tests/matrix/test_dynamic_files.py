"""Dynamic mode when its file becomes something else: training goes on at once, with what was configured before."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from probe.core.config.errors import ConfigError
from tests.matrix.editing import config, training
from tests.matrix.harness import Harness, train_step
from tests.matrix.models import tiny_net
from tests.matrix.watching import inputs, rows_of


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration of a run in dynamic mode that collects from its second step on."""
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path / "out"))
    monkeypatch.setenv("DYNAMIC_MONITOR", "True")
    return config(tmp_path / "monitor.json", on=True)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def endless(path: Path) -> None:
    with path.open("ab") as file:
        file.truncate(1 << 40)


def bomb(path: Path) -> None:
    lines = [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in range(1, 40)]
    path.write_text("\n".join(["dynamic_on: true", "a0: &a0 [x]", *lines]))


@pytest.mark.parametrize("change", [pipe, device, directory, endless, bomb], ids=lambda change: change.__name__)
def test_a_file_that_became_a_trap_leaves_training_alone(
    framework: Harness, path: Path, caplog: pytest.LogCaptureFixture, change: Callable[[Path], None]
) -> None:
    """The file is not read, with one warning; collecting goes on as before."""
    if change is bomb:
        path = path.rename(path.with_suffix(".yaml"))
        path.write_text("dynamic_on: true\nparam_distribution: true\n")
    begun = time.process_time()
    with caplog.at_level(logging.WARNING, "probe.control"), training(framework, path, 6, {2: change}) as monitor:
        pass
    assert {row.step for row in rows_of(monitor)} == {1, 2, 3, 4, 5}
    (message,) = (each for each in caplog.messages if "cannot be used" in each)
    assert "expected" in message
    assert time.process_time() - begun < 5


def test_a_file_that_was_deleted_is_missed_once(
    framework: Harness, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning has the remedy; put back with other values, the file takes effect."""
    edits = {2: Path.unlink, 5: lambda path: config(path, on=True, op="max")}
    with caplog.at_level(logging.WARNING, "probe.control"), training(framework, path, 9, edits) as monitor:
        pass
    ops = {row.step: tuple(numbers) for row, numbers in rows_of(monitor).items()}
    assert ops == dict.fromkeys(range(1, 6), ("norm",)) | dict.fromkeys(range(6, 9), ("max",))
    (message,) = (each for each in caplog.messages if str(path) in each)
    assert "expected the configuration file to stay" in message
    assert "put the file back" in message
    assert all(record.exc_info is None for record in caplog.records)
    assert monitor.faults == {"control: FileNotFoundError": 1}


def test_a_file_that_was_deleted_before_attaching_is_an_error(framework: Harness, path: Path) -> None:
    """Training has not begun; nothing is attached."""
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=0.01, momentum=0.5)
    monitor = framework.TrainerMon(path)
    path.unlink()
    before = framework.picture([model], [optimizer])
    with pytest.raises(ConfigError, match=r"monitor\.json: expected the configuration file to stay.*put it back"):
        monitor.set_monitor(model, 1, optimizer)
    assert framework.picture([model], [optimizer]) == before


@pytest.mark.slow
def test_many_targets_that_nothing_is_called_hold_nobody_up(
    framework: Harness, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The change is refused within a time that grows as the file does, in a message that can be read."""
    names = ", ".join(f'"layers.{number}": {{}}' for number in range(30_000))
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=0.01, momentum=0.5)
    loop = framework.loop(model, optimizer)
    with framework.TrainerMon(path) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        train_step(loop, *inputs(framework, 1))
        path.write_text(f'{{"dynamic_on": true, "wg_distribution": true, "targets": {{{names}}}}}')
        begun = time.process_time()
        train_step(loop, *inputs(framework, 1))
        assert time.process_time() - begun < 5
    assert monitor.faults == {"control: ValueError": 1}
    (record,) = (each for each in caplog.records if "targets.layers.0" in each.getMessage())
    text = logging.Formatter().format(record)
    assert "and 29980 more" in text
    assert text.count("targets.layers.") < 50
