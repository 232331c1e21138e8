"""The watcher's process as a rank sees it: its settings, its lock, and a program that does not start."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from probe.core.config.schema import AlertSettings, RunSettings, Settings
from probe.core.faults import Faults
from probe.core.run_state import watcher_process
from probe.core.run_state.watcher_process import LOCK, SETTINGS, WatcherSettings, ensure_watcher, watcher_pid


def test_settings_come_through_their_file(tmp_path: Path) -> None:
    """The watcher reads the configuration that the rank has written, which only this user can read."""
    hang = HangSettings(enable=True, on_hang="end", floor_seconds=5.0, startup_seconds=7.0)
    settings = Settings(run=RunSettings(hang=hang), alert=AlertSettings(grace_seconds=3.0, group_seconds=2.0, rules=()))
    written = WatcherSettings.of(settings, "job", tmp_path / "a" / ".." / "output")
    written.write(tmp_path)
    assert WatcherSettings.read(tmp_path) == written
    assert (tmp_path / SETTINGS).stat().st_mode & 0o777 == 0o600
    assert written.output == str(tmp_path / "output")
    assert (written.on_hang, written.floor_seconds, written.startup_seconds, written.grace_seconds) == ("end", 5, 7, 3)
    assert AlertSettings.model_validate({**written.alert, "rules": []}) == settings.alert


def test_a_lock_tells_whether_a_watcher_lives(tmp_path: Path) -> None:
    """No file, a file that nobody holds, and one that a process holds."""
    assert watcher_pid(tmp_path) == 0
    held = os.open(tmp_path / LOCK, os.O_RDWR | os.O_CREAT)
    os.write(held, b"4242")
    assert watcher_pid(tmp_path) == 0
    fcntl.flock(held, fcntl.LOCK_EX)
    assert watcher_pid(tmp_path) == 4242
    os.close(held)
    assert watcher_pid(tmp_path) == 0


def test_a_watcher_that_never_starts_disturbs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts become rarer, each further one is counted, and nothing is raised."""
    monkeypatch.setattr(watcher_process, "SECONDS", 0.0)
    faults = Faults()
    settings = WatcherSettings("job", str(tmp_path))
    process = ensure_watcher(tmp_path, settings, True, faults, ["false"])
    for _ in range(3):
        process.look()
    assert faults.counts == {"hang: watcher started again": 3}
    missing = ensure_watcher(tmp_path / "nowhere", settings, True, faults, ["false"])
    missing.look()
    assert faults.counts["hang: watcher: FileNotFoundError"] == 2
    absent = ensure_watcher(tmp_path, settings, True, faults, ["/no/such/program"])
    assert faults.counts["hang: watcher: FileNotFoundError"] == 3
    monkeypatch.setattr(watcher_process, "SECONDS", 1000.0)
    absent.look()
    absent.look()
    assert faults.counts["hang: watcher: FileNotFoundError"] == 4, "the second one came too early"


def test_other_ranks_leave_the_start_to_the_first(tmp_path: Path) -> None:
    """A rank that is not the first starts nothing for a while."""
    faults = Faults()
    ensure_watcher(tmp_path / "nowhere", WatcherSettings("job", str(tmp_path)), False, faults, ["false"]).look()
    assert faults.counts == {}
