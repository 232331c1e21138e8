"""The `probe` command before any of its verbs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import probe

ROOT = Path(__file__).resolve().parent.parent


def test_the_version_is_the_packages_own() -> None:
    """`python -m probe --version` is the `probe` command, and says which version is installed."""
    command = [sys.executable, "-m", "probe", "--version"]
    assert subprocess.check_output(command, cwd=ROOT, text=True) == f"probe {probe.__version__}\n"
