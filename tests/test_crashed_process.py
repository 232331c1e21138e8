"""A process of the tests that dies: its test fails, all others run, and the run ends."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.required import require

require("xdist")

DIES = "def test_dies() -> None:\n    __import__('os')._exit(3)\n"
PASSES = "def test_passes() -> None:\n    pass\n"
OPTIONS = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", "-p", "no:cacheprovider")
SECONDS = 120


def test_the_run_goes_on_and_fails(tmp_path: Path) -> None:
    """Whether other tests of its file are left, or none."""
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    files = [PASSES, PASSES + DIES + PASSES.replace("passes", "passes_too"), PASSES, DIES]
    for number, text in enumerate(files):
        (tmp_path / f"test_{number}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", *OPTIONS, str(tmp_path)]
    own = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True, check=False, timeout=SECONDS)
    assert done.returncode == 1, done.stdout
    assert "2 failed, 4 passed" in done.stdout, done.stdout
