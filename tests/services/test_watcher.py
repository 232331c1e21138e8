"""The watcher of a node with real ranks: what it reports, what it leaves alone, and what it outlives."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from probe.core.run_state.watcher_process import LOG, SETTINGS, watcher_pid
from tests.required import require
from tests.services.node import Node
from tests.waiting import wait_for

require("numpy")
STEPS = ["steps", "still"]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.close()


def stacks(node: Node, alert: dict) -> dict[str, str]:
    folder = Path(re.search(r"^Stacks of all ranks of .*: (.*)$", alert["text"], re.M)[1])
    assert folder.parent == node.output / "hang"
    return {path.name: path.read_text() for path in folder.iterdir()}


def removed(group: Path) -> bool:
    """Whether a control group, whose last process may still be on its way out, could be removed."""
    with suppress(OSError):
        group.rmdir()
    return not group.exists()


def test_a_standstill_its_end_and_another_one(node: Node) -> None:
    """A rank that waits for data is named with the stacks of all; the end is announced; a second one is new, and a
    watcher that is killed meanwhile is started again and does not repeat it."""
    tail = [["steps", "still again"], ["load_batch", "go again"], ["steps", "end"], ["end"]]
    node.start([STEPS, ["load_batch", "go"], *tail], [["steps", "end"], ["end"]])
    node.trained(0)
    node.trained(1)
    before = time.monotonic()
    node.signal("still")
    first = node.alert("hang")
    assert first["severity"] == "critical"
    assert first["labels"].items() >= {"job": "toy", "rank": "0", "phase": "step"}.items()
    assert int(first["labels"]["seconds"]) >= 1
    assert time.monotonic() - before < 60
    assert "load_batch (toy_rank.py:" in first["title"]
    texts = stacks(node, first)
    assert texts.keys() == {"rank0.txt", "rank1.txt", f"node-{os.uname().nodename}.txt"}
    assert "load_batch (" in texts["rank0.txt"]
    assert "steps (" in texts["rank1.txt"]
    node.signal("go")
    assert node.alert("resolved")["key"] == first["key"]
    reader = node.reader(0)
    step = reader.row().step
    wait_for(lambda: reader.row().step > step + 5)
    node.signal("still again")
    second = node.alert("hang", 2)
    assert second["key"] != first["key"]
    killed = node.watcher
    os.kill(killed, signal.SIGKILL)
    assert wait_for(lambda: node.watcher not in (0, killed) and node.watcher) != killed
    wait_for(lambda: "closed" not in (node.folder / LOG).read_text() and watcher_pid(node.folder))
    node.signal("go again")
    assert node.alert("resolved", 2)["key"] == second["key"]
    node.signal("end")
    closed = node.alert("closed")
    assert not {"torch", "mindspore"} & set(closed["loaded"])
    sent = [(alert["kind"], alert.get("repeated")) for alert in node.alerts()]
    assert [kind for kind, repeated in sent if not repeated] == ["hang", "resolved"] * 2 + ["closed"]
    assert [kind for kind, repeated in sent if repeated] == ["hang"]  # for receivers that forget what is not sent again
    wait_for(lambda: not node.folder.exists())


def test_a_stopped_rank_and_one_that_holds_the_lock(node: Node) -> None:
    """A rank stopped by a signal is named as such, and so is one of whose threads one never releases the lock."""
    node.start([["steps", "end"]], [STEPS, ["hold_lock"]])
    node.trained(0)
    node.trained(1)
    node.ranks[0].send_signal(signal.SIGSTOP)
    stopped = node.alert("hang")
    assert stopped["labels"]["rank"] == "0"
    assert "stopped by a signal" in stopped["title"]
    node.ranks[0].send_signal(signal.SIGCONT)
    node.alert("resolved")
    node.signal("still")
    held = node.alert("hang", 2)
    assert "hold_lock (toy_rank.py:" in held["title"]
    assert re.search(r"training, holds the lock\)\n    (ToyRank\.)?hold_lock \(", stacks(node, held)["rank1.txt"])


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ([["load_batch", "never"]], "before the end of its first step"),
        ([STEPS, ["phase", "checkpoint", "saved"], *[STEPS] * 2, ["phase", "checkpoint", "never"]], "checkpoint"),
    ],
    ids=["before step 1", "in a save"],
)
def test_a_standstill_in_a_phase(node: Node, script: list, words: str) -> None:
    """The start and a save have budgets of their own, and standing still in them is found too; stacks stay on the node
    if the output directory cannot be written. The watcher stays as long as a rank lives, however long a look takes."""
    (node.output / "hang").touch()
    node.signal("saved")
    node.signal("still")
    in_a_save = len(script) > 1
    budget = 60.0 if in_a_save else 1.5
    node.start([["steps", "one"], *script] if in_a_save else script, startup_seconds=budget, linger_seconds=0.0)
    if in_a_save:
        node.trained(0)
        node.signal("one")
    alert = node.alert("hang")
    assert words in alert["title"]
    folder = Path(alert["text"].rpartition(": ")[2])
    assert folder.parent.parent == node.folder, "the output directory cannot be written"
    assert "load_batch" in (folder / "rank0.txt").read_text()
    assert "load_batch" in alert["title"]


def test_no_alarm_while_it_saves_evaluates_or_waits(node: Node) -> None:
    """Phases seen for the first time, a rank that waits for another one's, a promise and an evaluation that is not
    marked may take longer than the floor; a process that is killed or exits is told apart."""
    train = ["train", "20"]
    waits = [["load_batch", "saved"], ["steps", "promised"], ["end"]]
    node.start(
        [train, ["phase", "checkpoint", "saved"], ["steps", "evaluated"], ["evaluate", "done"], ["steps", "never"]],
        [train, *waits],
        [train, ["promise", "60"], ["load_batch", "promised"], ["steps", "exit"], ["leave", "3"]],
    )
    for rank in range(3):
        node.trained(rank)
    reader = node.reader(2)
    wait_for(lambda: reader.row().until)
    end = time.monotonic() + 1.5
    wait_for(lambda: time.monotonic() > end)
    node.signal("saved")
    reader = node.reader(0)
    step = reader.row().step
    wait_for(lambda: reader.row().step > step + 5)
    node.signal("promised")
    promised = node.reader(2)
    wait_for(lambda: not promised.row().until)
    node.signal("evaluated")
    end = time.monotonic() + 1.5
    wait_for(lambda: time.monotonic() > end)
    node.signal("done")
    step = reader.row().step
    wait_for(lambda: reader.row().step > step + 5)
    step = reader.row().step
    wait_for(lambda: reader.row().step > step + 50)
    assert node.alerts() == []
    node.signal("exit")
    left = node.alert("gone")
    assert "lost rank 2: " in left["title"]
    assert "exited with code 3" in left["title"]
    node.ranks[0].kill()
    killed = node.alert("gone", 2)
    assert killed["labels"]["rank"] == "0"
    assert "killed by SIGKILL" in killed["title"]
    assert "Rank 2 was lost" in killed["text"]
    node.alert("closed")
    assert [each["kind"] for each in node.alerts()] == ["gone", "gone", "closed"]


def test_the_end_of_a_standstill_by_force(node: Node) -> None:
    """With on_hang: end, the ranks of the node end after the dump, also one that does not react to SIGTERM."""
    node.start([["steps", "never"]], [STEPS, ["hold_lock"]], on_hang="end")
    node.trained(0)
    node.trained(1)
    node.ranks[0].send_signal(signal.SIGSTOP)
    alert = node.alert("hang")
    assert "The ranks of this node are ended" in alert["text"]
    assert [rank.wait(120) for rank in node.ranks] == [-signal.SIGKILL, -signal.SIGTERM]
    node.alert("closed")
    assert [each["kind"] for each in node.alerts()] == ["hang", "resolved", "closed"]


def test_the_first_rank_is_killed_and_the_watcher_stays(node: Node) -> None:
    """The loss of the rank that started the watcher is reported by it; signals to its group do not reach it. A machine
    that was frozen before for longer than the budget raises no alarm."""
    node.start([["steps", "never"]], [["steps", "end"], ["end"]])
    node.trained(0)
    node.trained(1)
    watcher = node.watcher
    assert (node.folder / SETTINGS).stat().st_mode & 0o777 == 0o600
    assert "toy" not in Path(f"/proc/{watcher}/cmdline").read_text()
    wait_for(lambda: "begins" in (node.folder / LOG).read_text())
    for pid in (frozen := [rank.pid for rank in node.ranks] + [watcher]):
        os.kill(pid, signal.SIGSTOP)
    end = time.monotonic() + 1.5
    wait_for(lambda: time.monotonic() > end)
    os.kill(frozen.pop(), signal.SIGCONT)
    end = time.monotonic() + 0.5
    wait_for(lambda: time.monotonic() > end)
    for pid in frozen:
        os.kill(pid, signal.SIGCONT)
    os.killpg(node.ranks[0].pid, signal.SIGKILL)
    assert "killed by SIGKILL" in node.alert("gone")["title"]
    assert node.watcher == watcher
    node.signal("end")
    node.alert("closed")
    assert [each["kind"] for each in node.alerts()] == ["gone", "closed"]


def test_out_of_memory_is_told_apart(node: Node) -> None:
    """A rank that the kernel kills since memory ran out is reported so."""
    group = Path(f"/sys/fs/cgroup/memory/probe-test-{os.getpid()}")
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(200 * 2**20))
    except OSError:
        pytest.skip("no control group can be made here")
    try:
        shell = f'echo $$ > {group}/cgroup.procs && exec "$@"'
        node.start([STEPS, ["allocate"]], before=["sh", "-c", shell, "sh"])
        node.trained(0)
        wait_for(lambda: node.watcher and "begins" in (node.folder / LOG).read_text())
        node.trained(0, node.reader(0).row().step + 5)  # the watch has looked at the rank by then
        node.signal("still")
        lost = node.alert("gone")
        assert "killed by SIGKILL; out of memory" in lost["title"]
        node.alert("closed")
    finally:
        node.close()
        wait_for(lambda: removed(group))


@pytest.mark.parametrize("renews", [True, False])
def test_a_standstill_is_found_after_the_folder_was_removed(node: Node, renews: bool) -> None:
    """As login managers remove what a user has in shared memory: the ranks make their files again, and one watcher
    watches them; where they cannot, the watcher goes on with the files that it has open."""
    node.start([*([] if renews else [["leave_files"]]), ["steps", "still"], ["load_batch", "go"]])
    before = wait_for(lambda: node.watcher)
    wait_for(lambda: "begins" in (node.folder / LOG).read_text())
    node.trained(0, node.reader(0).row().step + 50)  # the watcher has looked meanwhile
    shutil.rmtree(node.folder)
    if renews:
        wait_for(lambda: node.watcher not in (0, before))
        wait_for(lambda: node.reader(0).row().step > 40)
        wait_for(lambda: not Path(f"/proc/{before}").exists())
    node.signal("still")
    alert = node.alert("hang")
    assert "(toy_rank.py:" in alert["title"]  # in ``load_batch``, or in what it calls at that moment
    node.signal("go")
    assert node.alert("resolved")["key"] == alert["key"]
    assert [sent["kind"] for sent in node.alerts() if sent["kind"] == "hang"] == ["hang"]
