"""A machine that fails while a monitor is attached: training goes on; what a user wrote wrongly is an error."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import pytest

from probe.core.monitor.machine import machine_failed
from tests.required import require

torch = require("torch")

from probe.pytorch import TrainerMon  # noqa: E402 - only where torch is
from tests.pytorch.toys import TinyNet, X  # noqa: E402
from tests.tables import read  # noqa: E402

CONFIG = {"wg_distribution": True, "run": {"enable": True}, "alert": {"rules": []}}


def trained(config: dict[str, Any], steps: int = 3) -> tuple[TrainerMon, list[float]]:
    """A monitor, and the losses of a run that uses all of it."""
    torch.manual_seed(0)
    model = TinyNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor, losses = TrainerMon(config), []
    monitor.set_monitor(model, 1, optimizer)
    remove = monitor.on_run_step(lambda _: None)
    for _ in range(steps):
        with monitor.phase("forward"):
            loss = model(X).sum()
        loss.backward()
        monitor.log(loss=loss)
        assert monitor.commands() == []
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    remove()
    monitor.stop()
    return monitor, losses


def without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no thread be started, as where a process may have no more."""

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    for name in ("_start_new_thread", "_start_joinable_thread"):  # before and since Python 3.13
        monkeypatch.setattr(threading, name, refuse, raising=False)


def test_training_goes_on_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch, output_dir: Path) -> None:
    """It is counted; training writes the files itself."""
    _, losses = trained(CONFIG)
    with monkeypatch.context() as patch:
        patch.setenv("MONITOR_OUTPUT_DIR", str(output_dir / "other"))
        without_threads(patch)
        monitor, others = trained(CONFIG)
    assert (others, set(monitor.faults)) == (losses, {"delivery: RuntimeError", "run state: RuntimeError"})
    (directory,) = (output_dir / "other").glob("*-rank*")
    assert {row.step for row in read(directory) if row.signal == "grad_reduced"} == {0, 1, 2}


def test_training_goes_on_in_a_folder_that_is_gone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A relative output folder cannot be found there."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", "relative")
    monitor, _ = trained(CONFIG)
    assert monitor.faults == {"set_monitor: FileNotFoundError": 1}
    assert [record.levelname for record in caplog.records if "set_monitor" in record.getMessage()] == ["WARNING"]
    monkeypatch.chdir(tmp_path)


def test_an_output_folder_that_the_user_named_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Before training, as any mistake in the configuration."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path / "file" / "output"))
    with pytest.raises(OSError, match="file"):
        trained(CONFIG)


@pytest.mark.parametrize(
    ("error", "environ", "machine"),
    [
        (OSError(errno.ENOSPC, "no space"), {"MONITOR_OUTPUT_DIR": "/full"}, True),
        (OSError(errno.EROFS, "read-only"), {"MONITOR_OUTPUT_DIR": "/read-only"}, False),
        (OSError(errno.EROFS, "read-only"), {}, True),
        (PermissionError(errno.EACCES, "denied"), {}, True),
        (FileNotFoundError(errno.ENOENT, "none"), {}, False),
        (MemoryError(), {}, True),
        (RuntimeError("the model cannot be watched"), {}, False),
        (ValueError("no such target"), {}, False),
    ],
)
def test_failures_of_the_machine(error: Exception, environ: dict[str, str], machine: bool) -> None:
    """A folder that cannot be written is the user's failure only if the user has named it."""
    assert machine_failed(error, environ) is machine
