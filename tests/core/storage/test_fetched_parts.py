"""The copy of what was fetched: shared by the processes of a machine, and by no other."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from probe.core.storage.fetched_parts import FetchedParts, ListedObject

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="copies are shared on Linux alone")

KEEPER = """
import sys
from probe.core.storage.fetched_parts import CopyAddress, FetchedParts, ListedObject
address = eval(sys.stdin.readline())
parts = FetchedParts(address)
for n in range(200):
    with parts.alone("s3://b/o", n):
        if not parts.has("s3://b/o", n):
            parts.keep("s3://b/o", ListedObject(1000, 1.5, "a"), n, b"%5d" % n)
            print(n)
"""
"""Keeps 200 parts unless another process has done so, and prints those that it has kept."""

ABOUT = ListedObject(1000, 1.5, "a")


def others(parts: FetchedParts, number: int) -> list[str]:
    """What ``number`` processes print that run KEEPER at the same time."""
    command = [sys.executable, "-c", KEEPER]
    running = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(number)
    ]
    for process in running:
        assert process.stdin
        process.stdin.write(f"{parts.address!r}\n")
        process.stdin.flush()
    printed = [process.communicate()[0] for process in running]
    assert all(process.returncode == 0 for process in running)
    return printed


def test_processes_keep_each_part_once() -> None:
    """Each of 200 parts is kept by one of three processes, and read here as it was kept."""
    parts = FetchedParts()
    kept = [int(n) for text in others(parts, 3) for n in text.split()]
    assert sorted(kept) == list(range(200))
    assert [parts.read("s3://b/o", n, n, 9) for n in range(200)] == [b"%5d" % n for n in range(200)]
    assert parts.read("s3://b/o", 3, 3 + 4, 9) == b"3"
    assert parts.read("s3://b/o", 200, 200, 9) is None
    assert (parts.object("s3://b/o"), parts.object("s3://b/another")) == (ABOUT, None)
    assert parts.read("s3://b/another", 3, 3, 9) is None


def test_a_copy_of_another_machine_or_an_ended_process_is_left_alone() -> None:
    """A process that cannot open the copy has one of its own."""
    parts = FetchedParts()
    parts.keep("s3://b/o", ABOUT, 0, b"here")
    address = parts.address
    assert address
    same = FetchedParts(address)
    assert same.read("s3://b/o", 0, 0, 9) == b"here"
    (data, identity), index = address.files
    for elsewhere in (
        address._replace(machine="another"),
        address._replace(process=2**22),
        address._replace(files=((data, (identity[0], identity[1] + 1)), index)),
    ):
        assert FetchedParts(elsewhere).read("s3://b/o", 0, 0, 9) is None


def test_a_disk_that_takes_nothing_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is raised, and the part is fetched again by the next who wants it."""
    parts = FetchedParts()
    parts.keep("s3://b/o", ABOUT, 0, b"first")
    full = FetchedParts(parts.address)
    monkeypatch.setattr(full, "_data", os.open("/dev/full", os.O_RDWR))
    full.keep("s3://b/o", ABOUT, 1, b"second")
    assert not full.has("s3://b/o", 1)
    assert parts.read("s3://b/o", 0, 0, 9) == b"first"


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
    done = subprocess.run([sys.executable, "-c", READER], capture_output=True, text=True, check=True)
    fetched, size = json.loads(done.stdout)
    assert fetched <= 1.5 * size
    assert done.stderr.count("no space for what is fetched: folder=") == 1
