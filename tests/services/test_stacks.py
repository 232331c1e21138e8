"""Stacks of ranks without py-spy, and folders that killed jobs left."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from probe.services.watcher.processes import RankProcess
from probe.services.watcher.program import OLD_SECONDS, sweep
from probe.services.watcher.stacks import RankStacks, StackSubject, read_stacks
from tests.services.node import Node
from tests.waiting import wait_for


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.close()


def subject(node: Node, rank: int) -> StackSubject:
    reader = node.reader(rank)
    process = RankProcess(reader.header.pid, reader.header.started)
    return StackSubject(reader.header, process, reader.path.with_suffix(".stacks"))


def functions(stacks: RankStacks) -> list[str]:
    return [frame.function for frame in stacks.training]


def test_stacks_by_the_signal(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without py-spy, ranks write their own, also one that holds the lock; one without a handler gets no signal."""
    node.start([["steps", "still"], ["hold_lock"]], [["load_batch", "never"]])
    node.trained(0)
    node.signal("still")
    subjects = [subject(node, rank) for rank in (0, 1)]
    bare = subjects[1].header._replace(signal=subjects[1].header.signal - 1)
    monkeypatch.setattr(shutil, "which", lambda *arguments, **options: None)
    held = wait_for(lambda: (read := read_stacks(subjects)) and "hold_lock" in functions(read[0]) and read)
    assert [stacks.source for stacks in held] == ["faulthandler"] * 2
    assert "load_batch" in functions(held[1])
    (refused,) = read_stacks([subjects[1]._replace(header=bare)])
    assert refused.problem == "py-spy is not installed; no signal is registered for stacks"
    (left,) = read_stacks([subjects[1]], by_signal=False)
    assert left.problem == "py-spy is not installed"
    assert [rank.poll() for rank in node.ranks] == [None, None]


def test_folders_of_killed_jobs_are_removed(tmp_path: Path) -> None:
    """A folder goes if it is a day old and none of its ranks lives; others stay, with what else is there."""
    old, living, young = (tmp_path / (digit * 16) for digit in "abc")
    strange = tmp_path / "results"
    for folder, pid in ((old, 2**22 + 1), (living, os.getpid()), (young, 2**22 + 1), (strange, 2**22 + 1)):
        folder.mkdir()
        for name in (f"rank0-{pid}.progress", "watcher.json", "watcher.lock"):
            (folder / name).touch()
        if folder != young:
            os.utime(folder, (time.time() - OLD_SECONDS - 60,) * 2)
    sweep(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {living.name, young.name, "results"}
    assert len(list(living.iterdir())) == 3
