"""Numbers of runs that one program trains side by side."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probe.core.backend.protocols import Remove
from probe.core.faults import Faults
from probe.core.output.program_number import claim_number, folder_of, process_start
from tests.quick_python import quick_python
from tests.user_scripts import COMMANDS

ROOT = Path(__file__).parents[3]
GROUPS: Any = SimpleNamespace(world_size=lambda: 1, rank=lambda: 0)
WATCHED = {"PROBE_RUN_ID": "18f"}


def claimed(root: Path, groups: Any = GROUPS, **environ: str) -> tuple[int, Remove]:
    return claim_number(root, groups, WATCHED | environ, Faults())


def test_the_lowest_free_number_is_taken(tmp_path: Path) -> None:
    """Of what runs in a process at a time; a number is free again when its run has ended."""
    (first, release), (second, release_second) = claimed(tmp_path), claimed(tmp_path)
    assert (first, second) == (0, 1)
    release()
    release()
    (third, release_third), (elsewhere, release_elsewhere) = claimed(tmp_path), claimed(tmp_path, PROBE_RUN_ID="190")
    assert (third, elsewhere) == (0, 0)
    for release in (release_second, release_third, release_elsewhere):
        release()


@pytest.mark.parametrize(
    ("groups", "environ"),
    [
        (GROUPS, {"PROBE_RUN_ID": ""}),
        (GROUPS, {"WORLD_SIZE": "2"}),
        (SimpleNamespace(world_size=lambda: 2, rank=lambda: 1), {}),
    ],
)
def test_ranks_of_a_launcher_and_programs_that_are_not_watched_have_none(
    groups: Any, environ: dict[str, str], tmp_path: Path
) -> None:
    """Two of them have the same number."""
    assert [claimed(tmp_path, groups, **environ)[0] for _ in range(2)] == [0, 0]
    assert list(tmp_path.iterdir()) == []


def test_a_number_that_another_process_has_held_meanwhile_is_not_free(tmp_path: Path) -> None:
    """Of a process that ended, or was killed, after this one began; one that ended before leaves it."""
    folder = folder_of(tmp_path, WATCHED)
    (folder / "0").write_text(json.dumps(["1 1", process_start() + 1]))
    (folder / "1").write_text(json.dumps(["1 1", None]))
    os.utime(folder / "1", (process_start() + 1,) * 2)
    (folder / "2").write_text(json.dumps(["1 1", process_start() - 1]))
    number, release = claimed(tmp_path)
    assert number == 2
    release()


def test_processes_that_begin_at_once_have_different_numbers(tmp_path: Path) -> None:
    """Twelve processes that choose together have the numbers 0 to 11, one each."""
    program = (
        "import sys\nfrom pathlib import Path\nfrom tests.core.output.test_program_number import claimed\n"
        "print('ready', flush=True)\nsys.stdin.readline()\n"
        "number, release = claimed(Path(sys.argv[1]))\nprint(number, flush=True)\nsys.stdin.readline()\n"
    )
    command = [quick_python(*COMMANDS), "-c", program, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    started = [
        subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(12)
    ]
    answers = []
    for expected in ("ready", ""):
        answers = [process.stdout.readline().strip() for process in started if process.stdout]
        assert not expected or answers == [expected] * 12
        for process in started:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
    assert sorted(map(int, answers)) == list(range(12))
    for process in started:
        process.communicate(timeout=60)


def test_a_folder_that_cannot_be_written_is_counted(tmp_path: Path) -> None:
    """The run goes on with the number 0."""
    faults, above = Faults(), tmp_path / "file"
    above.write_text("")
    environ = WATCHED | {"PROBE_PROGRESS_DIR": str(above / "folder")}
    assert claim_number(tmp_path, GROUPS, environ, faults)[0] == 0
    assert sum(faults.counts.values()) == 1
