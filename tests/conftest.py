"""Fixtures of every test."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

# A shell that runs the tests in the background has them ignore it, and so every process that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def output_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where monitors of this test write by default: never the repository."""
    path = tmp_path / "monitor_output"
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(path))
    return path
