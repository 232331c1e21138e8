"""The copy of what was fetched: shared by the processes of a machine, and by no other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from probe.core.storage.fetched_parts import FetchedParts, ListedObject
from tests.quick_python import quick_python
from tests.user_scripts import COMMANDS

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="files cannot be locked")

KEEPER = """
import sys
from probe.core.storage.fetched_parts import FetchedParts, ListedObject
parts = FetchedParts(sys.argv[1])
for n in range(200):
    with parts.alone("s3://b/o", n):
        if not parts.has("s3://b/o", n):
            parts.keep("s3://b/o", ListedObject(1000, 1.5, "a"), n, b"%5d" % n)
            print(n)
"""
"""Keeps 200 parts unless another process has done so, and prints those that it has kept."""

ABOUT = ListedObject(1000, 1.5, "a")


def test_processes_keep_each_part_once() -> None:
    """Each of 200 parts is kept by one of three processes, and read here as it was kept."""
    parts = FetchedParts()
    command = [quick_python(*COMMANDS), "-c", KEEPER, parts.folder]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    printed = [process.communicate()[0] for process in running]
    assert sorted(int(n) for text in printed for n in text.split()) == list(range(200))
    assert [parts.read("s3://b/o", n, n, 9) for n in range(200)] == [b"%5d" % n for n in range(200)]
    assert parts.read("s3://b/o", 3, 3 + 4, 9) == b"3"
    assert parts.read("s3://b/o", 200, 200, 9) is None
    assert (parts.object("s3://b/o"), parts.object("s3://b/another")) == (ABOUT, None)
    assert parts.read("s3://b/another", 3, 3, 9) is None


def test_a_copy_that_is_not_there_is_left_alone() -> None:
    """As that of another machine, or of a process that has ended: a process then has one of its own."""
    parts = FetchedParts()
    parts.keep("s3://b/o", ABOUT, 0, b"here")
    assert FetchedParts(parts.folder).read("s3://b/o", 0, 0, 9) == b"here"
    folder = parts.folder
    del parts
    assert not Path(folder).exists()
    other = FetchedParts(folder)
    assert (other.folder != folder, other.read("s3://b/o", 0, 0, 9)) == (True, None)


def test_what_a_killed_process_has_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the next copy that is made in the same folder; those of processes that live stay."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    alive = FetchedParts()
    code = f"import os; from probe.core.storage.fetched_parts import FetchedParts\n{KILLED}"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(tmp_path)}, check=False)
    assert len(list(tmp_path.iterdir())) == 2
    new = FetchedParts()
    assert {str(path) for path in tmp_path.iterdir()} == {alive.folder, new.folder}


KILLED = "parts = FetchedParts()\nos.kill(os.getpid(), 9)"


READER = """
import json, resource, sys
from fsspec.implementations.memory import MemoryFileSystem
from probe.core.storage.location import fetch_ahead, located

resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))  # as if the disk had no more space
fetched, cat_file = [], MemoryFileSystem.cat_file

def counted(self, path, start=None, end=None, **options):
    data = cat_file(self, path, start, end, **options)
    fetched.append(len(data))
    return data

MemoryFileSystem.cat_file = counted
files = MemoryFileSystem()
sizes = {"small": 8 << 20, "other": 8 << 20, "large": 20 << 20}
for name, size in sizes.items():
    files.pipe_file(f"/b/run/{name}", bytes(range(256)) * (size // 256))
root = located("memory://b/run")
fetch_ahead(root / name for name in sizes)
for name, size in sizes.items():
    with (root / name).open() as file:
        assert file.read(size) == bytes(range(256)) * (size // 256)
        for at in range(0, size, 1 << 16):
            file.seek(at if at % 3 else size - at - 1)  # parts are read in turns
            assert file.read(1)
print(json.dumps([sum(fetched), sum(sizes.values())]))
"""


def test_without_space_on_the_disk_parts_are_held_in_memory() -> None:
    """Each byte is fetched once, and one line names the folder."""
    done = subprocess.run([quick_python(*COMMANDS), "-c", READER], capture_output=True, text=True, check=True)
    fetched, size = json.loads(done.stdout)
    assert fetched <= 1.5 * size
    assert done.stderr.count("no space for what is fetched: folder=") == 1
