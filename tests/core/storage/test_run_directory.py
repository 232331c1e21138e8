"""The time in the names of folders: the same on every machine."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from probe.core.storage.run_directory import parsed_stamp, stamp
from tests.quick_python import quick_python
from tests.user_scripts import COMMANDS

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
            [quick_python(*COMMANDS), "-c", FOLDERS],
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


GERMAN = """
import calendar, json, sys
from pathlib import Path

calendar.month_abbr = ["", *"Jan Feb Mrz Apr Mai Jun Jul Aug Sep Okt Nov Dez".split()]  # as LC_ALL=de_DE sets it

from probe.core.storage.directories import find
from probe.core.storage.problems import Problems
from probe.core.storage.run_directory import parsed_stamp, stamp

root = Path(sys.argv[1])
months = [parsed_stamp(stamp(1764768880.0 - 86400 * 30 * n), 2025).month for n in range(12)]
print(json.dumps([months, [each.began for each in find(root, Problems(), "Dec03_21-34-40", "Dec03_21-34-40")]]))
"""


def test_the_time_in_a_name_is_read_in_the_language_in_which_it_is_written(tmp_path: Path) -> None:
    """Whatever the language of the machine: a run without a manifest is of the time in its directory's name."""
    directory = tmp_path / "Dec03_21-34-40-rank0-1f0c9a3e"
    directory.mkdir()
    os.utime(directory, (1764800000, 1764800000))
    command = [quick_python(*COMMANDS), "-c", GERMAN, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1], [1764768880.0]]


@pytest.mark.parametrize("text", ["Dez03_21-34-40", "Dec3_21-34-40x", ""])
def test_another_text_is_no_time_of_a_folder(text: str) -> None:
    """As a user might write it for --time-start."""
    with pytest.raises(ValueError, match=r"month|format|unconverted"):
        parsed_stamp(text, 2025)


ZONES = """
from probe.core.storage.run_directory import local_stamp, zone_note
print(local_stamp(1796304880.0))
print(zone_note("out/Dec03_21-34-40-rank0-1f0c9a3e"))
print(zone_note("out/other"))
"""


@pytest.mark.parametrize(
    ("zone", "time", "note"),
    [
        ("UTC", "Dec03 13:34:40", " (its name has the time of UTC+08:00)"),
        ("Asia/Shanghai", "Dec03 21:34:40", ""),
    ],
)
def test_people_read_times_of_their_own_zone(zone: str, time: str, note: str) -> None:
    """Lists have the local time; a name with another one is printed with its zone."""
    environ = {**os.environ, "TZ": zone}
    done = subprocess.run(
        [quick_python(*COMMANDS), "-c", ZONES], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{time}\n{note}\n\n"
