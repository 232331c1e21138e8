"""Alerts reach every channel once, in few messages, whatever else happens."""

from __future__ import annotations

import json
import os
import random
import signal
import stat
import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from probe.core.alerting.matters import Matters
from probe.core.faults import Faults
from probe.core.messages import HANDLER
from tests.core.alerting.receivers import (
    ACCEPTED,
    Answer,
    Receiver,
    alert,
    alerts_to,
    black_hole,
    raw_server,
    serving,
    text_of,
)
from tests.interrupts import interrupt
from tests.quick_python import quick_python
from tests.required import require
from tests.user_scripts import COMMANDS
from tests.waiting import free_port, wait_for

require("httpx")
ROOT = Path(__file__).resolve().parents[3]


def http(url: str, **more: Any) -> dict[str, Any]:
    return {"channel": "http", "args": {"url": url}, **more}


def titles(receiver: Receiver) -> list[list[str]]:
    """Titles of the alerts in each message."""
    return [[each["title"] for each in request.body["alerts"]] for request in receiver.requests]


def spooled(directory: Path) -> list[Path]:
    return sorted((directory / "alerts").glob("*.json"))


def test_alerts_within_the_time_of_a_group_are_one_message() -> None:
    """The first one begins it; a flush ends it."""
    with serving(Receiver()) as receiver:
        alerts, _ = alerts_to([http(receiver.url())], group=1.0)
        start = time.monotonic()
        for key in "abc":
            alerts.send(alert(key))
        wait_for(lambda: receiver.requests)
        assert receiver.requests[0].time - start >= 1
        alerts.send(alert("d"))
        assert alerts.close(60)
        assert titles(receiver) == [["Spike of a", "Spike of b", "Spike of c"], ["Spike of d"]]


def test_a_layer_stands_before_the_loss_that_it_made_bad() -> None:
    """Within a message, whichever came first; a loss that was bad in an earlier step stays where it is."""
    with serving(Receiver()) as receiver:
        alerts, _ = alerts_to([http(receiver.url())], group=30)
        for key, kind, step in (("old", "run", 4), ("loss", "run", 5), ("norm", "run", 6), ("layer", "finding", 5)):
            alerts.send(alert(key, step=str(step))._replace(kind=kind))
        assert alerts.close(60)
        assert titles(receiver) == [["Spike of old", "Spike of layer", "Spike of loss", "Spike of norm"]]


def test_an_open_matter_is_sent_once_and_its_end_too() -> None:
    """Repetitions are counted; after the end it is sent again; the end of one that was never sent is not."""
    with serving(Receiver()) as receiver:
        alerts, _ = alerts_to([http(receiver.url())])
        for _ in range(3):
            alerts.send(alert("a", step="3"))
        alerts.resolve("b", "never sent")
        assert alerts.flush(60)
        alerts.resolve("a", "normal again")
        assert alerts.flush(60)
        alerts.send(alert("a"))
        assert alerts.close(60)
        (first,), (end,), (again,) = (request.body["alerts"] for request in receiver.requests)
        assert (first["resolved"], end["resolved"], again["resolved"]) == (False, True, False)
        assert end["text"] == "normal again\n2 repetitions not sent"
        assert end["labels"] == first["labels"]
        assert first["labels"]["job"] == "pretraining"


def test_severities_choose_channels() -> None:
    """Each gets those from its own least severity on; the end of a matter goes where its alert went."""
    with serving(Receiver()) as all_of_them, serving(Receiver()) as worst:
        channels = [http(all_of_them.url(), severity="info"), http(worst.url(), severity="critical")]
        alerts, _ = alerts_to(channels)
        alerts.send(alert("a", "info"))
        alerts.send(alert("b", "critical"))
        alerts.resolve("a")
        alerts.resolve("b")
        assert alerts.close(60)
        assert titles(all_of_them) == [["Spike of a", "Spike of b", "Spike of a", "Spike of b"]]
        assert titles(worst) == [["Spike of b", "Spike of b"]]


def test_a_dead_channel_delays_no_other(tmp_path: Path) -> None:
    """The second channel gets its message at once, also within the short time of a flush; the first keeps its own."""
    with raw_server(black_hole) as dead, serving(Receiver()) as receiver:
        alerts, faults = alerts_to([http(dead), http(receiver.url())], tmp_path)
        alerts.send(alert("a"))
        start = time.monotonic()
        assert not alerts.flush(3.0)
        assert receiver.requests[0].time < time.monotonic() - 0.5
        assert time.monotonic() - start < 25  # the first never answers
        (path,) = spooled(tmp_path)
        assert json.loads(path.read_text())["pending"] == ["http[0]"]
        assert not alerts.close(0.2)
        assert [each for each in faults.counts if "http[1]" in each] == []


def test_ranks_that_share_a_folder_send_a_matter_once(tmp_path: Path) -> None:
    """The first one sends it and its end; matters of another run are not theirs."""
    with serving(Receiver()) as receiver:
        ranks = [alerts_to([http(receiver.url())], tmp_path, rank=rank, run="one")[0] for rank in range(4)]
        other, _ = alerts_to([http(receiver.url())], tmp_path, run="other")
        threads = [threading.Thread(target=each.send, args=(alert("nan loss"),)) for each in ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(each.flush(60) for each in ranks)
        assert titles(receiver) == [["Spike of nan loss"]]
        other.send(alert("nan loss"))
        assert other.close(60)
        assert len(receiver.requests) == 2
        for each in ranks:
            each.resolve("nan loss", "over")
        assert all(each.flush(60) for each in ranks)
        assert [request.body["alerts"][0]["resolved"] for request in receiver.requests] == [False, False, True]
        ranks[2].send(alert("nan loss"))
        assert all(each.close(60) for each in ranks)
        assert len(receiver.requests) == 4


class Unaware(Matters):
    """Rank that has looked into the folder before another one created its file."""

    def _files(self, key: str) -> list[Path]:
        return []


def test_of_two_ranks_at_the_same_moment_one_is_first(tmp_path: Path) -> None:
    """The file system decides."""
    ranks = [Unaware(tmp_path, "run", Faults()) for _ in range(3)]
    assert [each.open(alert("nan loss")) for each in ranks] == [True, False, False]


def test_10000_alerts_at_once_are_few_messages_within_8_mib(tmp_path: Path) -> None:
    """Every one is in a message or counted there, and in the faults."""
    with serving(Receiver()) as receiver:
        alerts, faults = alerts_to([http(receiver.url(), severity="info")], tmp_path, group=10.0)
        alerts.send(alert("first"))
        assert alerts.flush(60)
        tracemalloc.start()
        try:
            for number in range(10_000):
                severity = ("info", "warning", "critical")[number % 3]
                alerts.send(alert(f"finding {number}", severity, text="layer\n" * 100))
            assert alerts.close(60)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 8 * 1024 * 1024
        assert 2 <= len(receiver.requests) <= 20
        sent = [each for request in receiver.requests for each in request.body["alerts"]]
        single = [each for each in sent if each["kind"] != "omitted"]
        counted = sum(int(each["title"].split()[0]) for each in sent if each["kind"] == "omitted")
        assert len(single) + counted == 10_001
        assert counted == faults.counts["alerts: counted, not sent one by one"]
        assert spooled(tmp_path) == []
        assert len(list((tmp_path / "alerts").iterdir())) < 500


def test_sending_waits_for_nobody_and_leaves_random_numbers_alone() -> None:
    """Also while the receiver is a black hole: an attempt at it takes longer than all calls together."""
    with raw_server(black_hole) as dead:
        alerts, _ = alerts_to([http(dead)])
        state = random.getstate()
        alerts.send(alert("a"))
        start = time.monotonic()
        for number in range(200):
            alerts.send(alert(f"{number}"))
        assert time.monotonic() - start < 10
        alerts.close(0.1)
        assert random.getstate() == state


def test_spooled_alerts_are_private_and_gone_when_accepted(tmp_path: Path) -> None:
    """Mode 0600 from before they are sent until every channel has them."""
    with raw_server(black_hole) as dead:
        alerts, _ = alerts_to([http(dead)], tmp_path)
        alerts.send(alert("a"))
        wait_for(lambda: spooled(tmp_path))
        (path,) = spooled(tmp_path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert json.loads(path.read_text())["alert"]["title"] == "Spike of a"
        assert not alerts.close(0.2)
        assert spooled(tmp_path) == [path]
    with serving(Receiver()) as receiver:
        later, _ = alerts_to([http(receiver.url())], tmp_path)
        later.start()
        wait_for(lambda: not spooled(tmp_path))
        assert later.close(60)
        assert titles(receiver) == [["Spike of a"]]
        assert [path.name for path in (tmp_path / "alerts").iterdir() if not path.name.startswith("matter-")] == []


KILLED = """
import sys, time
from pathlib import Path
from tests.core.alerting.receivers import alert, alerts_to
alerts, _ = alerts_to([{"channel": "http", "args": {"url": sys.argv[1]}}], Path(sys.argv[2]))
alerts.send(alert(sys.argv[3]))
print("sent", flush=True)
time.sleep(600)
"""


def running(url: str, directory: Path, key: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", KILLED, url, str(directory), key]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_what_a_killed_run_could_not_send_the_next_one_sends(tmp_path: Path) -> None:
    """SIGKILL during delivery; alerts of another run of the same job, which lives, are left to it."""
    with (
        raw_server(black_hole) as dead,
        serving(Receiver()) as receiver,
        running(dead, tmp_path, "killed") as killed,
        running(dead, tmp_path, "alive") as alive,
    ):
        wait_for(lambda: len(spooled(tmp_path)) == 2)
        killed.kill()
        killed.wait()
        later, _ = alerts_to([http(receiver.url())], tmp_path)
        later.start()
        wait_for(lambda: receiver.requests)
        assert later.close(60)
        assert titles(receiver) == [["Spike of killed"]]
        (left,) = spooled(tmp_path)
        assert json.loads(left.read_text())["alert"]["key"] == "alive"
        alive.kill()


FULL = """
import resource, signal, sys
from pathlib import Path
from tests.core.alerting.receivers import alert, alerts_to
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
alerts, faults = alerts_to([{"channel": "http", "args": {"url": sys.argv[1]}}], Path(sys.argv[2]))
alerts.send(alert("a"))
print(alerts.close(60), faults.counts)
"""


def test_with_a_full_disk_alerts_are_sent_all_the_same(tmp_path: Path) -> None:
    """And the failure is counted."""
    with serving(Receiver()) as receiver:
        command = [quick_python(*COMMANDS), "-c", FULL, receiver.url(), str(tmp_path)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        assert done.stdout == "True {'alerts: spool: OSError': 1}\n"
        assert titles(receiver) == [["Spike of a"]]
        assert spooled(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_counted(tmp_path: Path) -> None:
    """A file where the folder should be: the alert is sent all the same."""
    (tmp_path / "alerts").write_text("in the way")
    with serving(Receiver()) as receiver:
        alerts, faults = alerts_to([http(receiver.url())], tmp_path)
        alerts.send(alert("a"))
        assert alerts.close(60)
        assert titles(receiver) == [["Spike of a"]]
        assert faults.counts == {
            "alerts: first of the ranks: FileExistsError": 1,
            "alerts: spool: FileExistsError": 1,
        }


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_sends_nothing() -> None:
    """Neither what waits in the parent nor its own; the parent goes on."""
    with serving(Receiver()) as receiver:
        alerts, _ = alerts_to([http(receiver.url())], group=5.0)
        alerts.send(alert("parent"))
        child = os.fork()
        if child == 0:
            alerts.send(alert("child"))
            os._exit(0 if alerts.flush(2) and alerts.close(2) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert receiver.requests == []
        assert alerts.close(60)
        assert titles(receiver) == [["Spike of parent"]]


def test_a_signal_handler_sends_and_flushes() -> None:
    """Also where it interrupts a line of the log, or a fault that is noted."""
    with serving(Receiver()) as receiver:
        alerts, faults = alerts_to([http(receiver.url())], group=5.0)
        results: list[bool] = []

        def handle(number: int, frame: object) -> None:
            alerts.send(alert("sigterm", "critical"))
            results.append(alerts.flush(60))

        before = signal.signal(signal.SIGUSR2, handle)
        try:
            HANDLER.acquire()
            with faults._locked():
                os.kill(os.getpid(), signal.SIGUSR2)
        finally:
            HANDLER.release()
            signal.signal(signal.SIGUSR2, before)
        assert results == [True]
        assert titles(receiver) == [["Spike of sigterm"]]
        alerts.close(1)


def test_without_a_thread_a_flush_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where none can be started, alerts wait for the next flush, whose caller sends them; that is counted."""

    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with serving(Receiver()) as receiver:
        monkeypatch.setattr(threading.Thread, "start", fail)
        alerts, faults = alerts_to([http(receiver.url())])
        alerts.send(alert("loss"))
        assert alerts.flush(60)
        monkeypatch.undo()
        assert titles(receiver) == [["Spike of loss"]]
        assert set(faults.counts) == {"alerts: RuntimeError"}
        alerts.send(alert("norm"))
        assert alerts.close(60)
        assert titles(receiver) == [["Spike of loss"], ["Spike of norm"]]


class Interrupting(Receiver):
    """A receiver that answers once the wait of the main thread has been interrupted as Ctrl-C does."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.interrupted = threading.Event(), threading.Event()

    def answer(self, request: object) -> Answer:
        self.asked.set()
        self.interrupted.wait()
        return ACCEPTED


def test_an_interrupted_close_is_finished_by_the_next() -> None:
    """Ctrl-C while the last alerts are waited for loses none, and a further close has nothing to wait for."""
    with serving(Interrupting()) as receiver:
        alerts, faults = alerts_to([http(receiver.url())], group=5.0)
        alerts.send(alert("loss"))
        interrupt(lambda: alerts.close(60), receiver.asked.is_set)
        receiver.interrupted.set()
        assert alerts.close(60)
        assert alerts.close(60)
        assert titles(receiver) == [["Spike of loss"]]
        assert faults.counts == {}


def test_nothing_is_started_without_channels_or_alerts(tmp_path: Path) -> None:
    """No attempt and no folder, and no thread stays."""
    threads = threading.active_count()
    for channels in ([], [http(f"http://127.0.0.1:{free_port()}/")]):
        alerts, _ = alerts_to(channels, tmp_path)
        if not channels:
            alerts.start()
            alerts.send(alert())
            alerts.resolve("spike loss")
        assert alerts.flush(1)
        assert alerts.close(1)
        alerts.send(alert())
    assert threading.active_count() == threads
    assert list(tmp_path.glob("alerts")) == []


def test_nothing_raises_whatever_is_sent() -> None:
    """An alert that is none is a fault; odd texts and severities arrive."""
    with serving(Receiver()) as receiver:
        alerts, faults = alerts_to([{"channel": "feishu", "args": {"url": receiver.url()}}])
        alerts.send(None)  # type: ignore[arg-type]
        alerts.send(alert("\ud800", "odd", text="\x00\u202e" * 30_000))
        assert alerts.close(60)
        assert "[critical]" in text_of(receiver.requests[0])
        assert sum(faults.counts.values()) == 1


def test_a_long_outage_ends_with_one_message(tmp_path: Path) -> None:
    """Everything that waited for the receiver is in it."""
    with serving(Receiver((500, {}, b""), ACCEPTED)) as receiver:
        alerts, _ = alerts_to([http(receiver.url())], tmp_path)
        alerts.send(alert("a"))
        wait_for(lambda: receiver.requests)
        for key in "bcd":
            alerts.send(alert(key))
        assert alerts.close(60)
        assert titles(receiver)[-1][:1] == ["Spike of a"]
        assert sorted({title for each in titles(receiver)[1:] for title in each}) == [f"Spike of {k}" for k in "abcd"]
        assert spooled(tmp_path) == []
