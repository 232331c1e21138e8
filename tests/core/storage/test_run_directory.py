"""The time in the names of folders: the same on every machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from probe.core.storage.run_directory import stamp

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
FOLDERS = """
import json, pathlib, time
from probe.core.storage import run_directory
from probe.core.analysis.convert.select import output_folder
from probe.core.output.resume import Resumed

class Before:
    path, manifest = pathlib.Path("."), {}

time.time = lambda: 1764768880.0
names = [run_directory.stamp(time.time()), output_folder(".", None, "csv2db").name, Resumed(Before, 3)._aside.name]
print(json.dumps(names))
"""


def test_all_folders_have_the_time_of_one_clock() -> None:
    """A run's, a conversion's and the one that keeps superseded files: UTC+08:00, whatever the machine's zone."""
    for zone in ("UTC", "America/New_York", "Asia/Shanghai"):
        done = subprocess.run(
            [sys.executable, "-c", FOLDERS],
            cwd=ROOT, env={**os.environ, "TZ": zone}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert json.loads(done.stdout) == [
            "Dec03_21-34-40",
            "Dec03_21-34-40_csv2db",
            "superseded-Dec03_21-34-40-from-step-3",
        ]


def test_the_time_is_eight_hours_ahead_of_greenwich() -> None:
    """2025-12-03 13:34:40 UTC, in English whatever the locale."""
    assert stamp(1764768880.0) == "Dec03_21-34-40"
