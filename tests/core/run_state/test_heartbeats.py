"""Heartbeats against a real server behind a network that fails: every message arrives, once, and nobody waits."""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from probe.core.faults import Faults
from probe.core.run_state import heartbeats
from probe.core.run_state.heartbeat_feed import HeartbeatFeed
from probe.core.run_state.heartbeat_messages import flattened, launch_name
from probe.core.run_state.heartbeats import Heartbeats, HeartbeatSpool
from tests.interrupts import interrupt
from tests.matrix import numpy_harness
from tests.matrix.harness import train_step
from tests.matrix.models import X, tiny_net
from tests.required import require
from tests.services.server_process import Served, serving
from tests.waiting import free_port, wait_for

require("httpx")
require("starlette")
require("uvicorn")
pytestmark = pytest.mark.slow

TOKEN = "secret-of-24-characters!"
Behaviour = Callable[[socket.socket, "Network"], None]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("server") / "server.sqlite", token=TOKEN) as started:
        yield started


SHORT, LONG = 1.0, 60.0
"""Seconds of an attempt at a receiver that never answers, and at one that does: a busy machine is no failure."""


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts that follow each other soon."""
    monkeypatch.setattr(heartbeats, "ATTEMPT_SECONDS", LONG)
    monkeypatch.setattr(heartbeats, "CONNECT_SECONDS", LONG)
    monkeypatch.setattr(heartbeats, "FIRST_WAIT", 0.05)
    monkeypatch.setattr(heartbeats, "LINGER", 0.01)


class Network:
    """The way to a server, on which the first connections fail."""

    def __init__(
        self, server: Served, behaviour: Behaviour, failing: int, last: Callable[[], None] = lambda: None
    ) -> None:
        self.server, self._behaviour, self._failing, self._last = server, behaviour, failing, last
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.failed, self.ended = 0, threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            fails = self.failed < self._failing
            self.failed += fails
            if fails and self.failed == self._failing:
                self._last()
            target = self._behaviour if fails else forward
            threading.Thread(target=self._one, args=(target, connection), daemon=True).start()

    def _one(self, target: Behaviour, connection: socket.socket) -> None:
        with connection:
            try:
                target(connection, self)
            except OSError:
                return

    def close(self) -> None:
        self.ended.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


def forward(connection: socket.socket, network: Network) -> None:
    """Both ways, until one side ends."""
    place = urlsplit(network.server.address)
    with socket.create_connection((place.hostname, place.port)) as other:
        back = threading.Thread(target=pump, args=(other, connection), daemon=True)
        back.start()
        pump(connection, other)
        back.join()


def pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def black_hole(connection: socket.socket, network: Network) -> None:
    """Takes everything and answers nothing."""
    network.ended.wait(2 * LONG)


def slow_drip(connection: socket.socket, network: Network) -> None:
    """A byte of a header now and then, without an end."""
    connection.recv(1 << 16)
    connection.sendall(b"HTTP/1.1 200 OK\r\nX-Long: ")
    while not network.ended.wait(0.02):
        connection.sendall(b"x")


def without_answer(connection: socket.socket, network: Network) -> None:
    """The server stores the messages; its answer is lost."""
    place = urlsplit(network.server.address)
    with socket.create_connection((place.hostname, place.port)) as other:
        threading.Thread(target=pump, args=(connection, other), daemon=True).start()
        other.settimeout(LONG)
        other.recv(1)
        connection.shutdown(socket.SHUT_RDWR)


def answering(status: str, content: str = "{}", header: str = "X-None: 1") -> Behaviour:
    """An answer that is always the same."""

    def answer(connection: socket.socket, network: Network) -> None:
        connection.recv(1 << 16)
        head = f"HTTP/1.1 {status}\r\n{header}\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n"
        connection.sendall((head + content).encode())

    return answer


def garbage(connection: socket.socket, network: Network) -> None:
    connection.recv(1 << 16)
    connection.sendall(os.urandom(1 << 10))


def endless(connection: socket.socket, network: Network) -> None:
    """An answer without an end."""
    connection.recv(1 << 16)
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while not network.ended.is_set():
        connection.sendall(b"x" * 4096)


BEHAVIOURS: dict[str, Behaviour] = {
    "closed": lambda connection, network: None,
    "black hole": black_hole,
    "slow drip": slow_drip,
    "lost answer": without_answer,
    "429": answering("429 Too Many Requests"),
    "429 with a time": answering("429 Too Many Requests", header="Retry-After: 0"),
    "500": answering("500 Internal Server Error"),
    "503 with a date": answering("503 No", header="Retry-After: Wed, 21 Oct 2015 07:28:00 GMT"),
    "200 of a page": answering("200 OK", "<html>log in</html>"),
    "200 for fewer": answering("200 OK", '{"stored":0,"known":0}'),
    "302": answering("302 Found", header="Location: http://127.0.0.1:1/"),
    "garbage": garbage,
    "endless": endless,
}
UNANSWERED = ("black hole", "slow drip")
"""Those that an attempt leaves only at its end."""


@contextmanager
def client(
    address: str, job: str, *, token: str | None = TOKEN, spool: Path | None = None, rank: int = 0
) -> Iterator[tuple[Heartbeats, Faults]]:
    faults = Faults()
    sender = Heartbeats(address, token=token, job=job, rank=rank, world_size=2, faults=faults, spool=spool)
    try:
        yield sender, faults
    finally:
        sender.close(0)


def numbers(server: Served, job: str) -> list[int]:
    return [row["number"] for row in server.stored(job)]


@pytest.mark.parametrize("name", BEHAVIOURS)
def test_every_message_arrives_once_after_failures(server: Served, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the first two connections did; in their order, findings between them; the failures are counted."""
    monkeypatch.setattr(heartbeats, "REFUSED_WAIT", 0.1)
    if name in UNANSWERED:
        monkeypatch.setattr(heartbeats, "ATTEMPT_SECONDS", SHORT)
    longer = partial(monkeypatch.setattr, heartbeats, "ATTEMPT_SECONDS", LONG)  # of the attempt after the last failure
    network = Network(server, BEHAVIOURS[name], failing=2, last=longer)
    with client(network.address, name) as (sender, faults):
        for step in range(6):
            sender.send("finding" if step == 3 else "train_metrics", {"step": step, "loss": 1 / (step + 1)}, promise=60)
        wait_for(lambda: len(numbers(server, name)) == 6)
        wait_for(lambda: network.failed == 2)
        sender.close(LONG)
    network.close()
    rows = server.stored(name)
    assert [row["number"] for row in rows] == list(range(7))
    assert [row["values"].get("step") for row in rows] == [0, 1, 2, 3, 4, 5, None]
    assert faults.counts == {"heartbeats: ConnectionError": 2}


def test_messages_wait_while_the_server_is_away(tmp_path: Path) -> None:
    """Not there at first, killed later: after it is back every message is there, once."""
    port = free_port()
    database = tmp_path / "server.sqlite"
    with client(f"http://127.0.0.1:{port}", "away", token=None) as (sender, faults):
        sender.send("init_time", {"import": 1.0})
        wait_for(lambda: faults.counts)
        with serving(database, "--port", str(port)) as server:
            wait_for(lambda: numbers(server, "away") == [0])
            server.end(signal.SIGKILL)
        for step in range(50):
            sender.send("train_metrics", {"step": step})
        with serving(database, "--port", str(port)) as server:
            wait_for(lambda: len(numbers(server, "away")) == 51)
            sender.close(LONG)
            assert numbers(server, "away") == list(range(52))
            assert server.job("away")["states"] == {"ended": 1}


def test_sending_returns_though_the_server_never_answers(server: Served) -> None:
    """And the buffer stays bounded: the oldest are dropped and counted; ending takes no longer than it may."""
    network = Network(server, black_hole, failing=1_000_000)
    with client(network.address, "never") as (sender, faults):
        for step in range(heartbeats.BUFFER_MESSAGES + 2_000):
            sender.send("train_metrics", {"step": step})
        began = time.monotonic()
        sender.close(0.3)
        assert time.monotonic() - began < 30
    counts = faults.counts
    dropped = counts["heartbeats: messages dropped, since too many waited"]
    unsent = counts["heartbeats: messages that were not sent before the end"]
    assert dropped >= 2_000 - heartbeats.MOST_MESSAGES
    assert dropped + unsent == heartbeats.BUFFER_MESSAGES + 2_000 + 1
    network.close()


def test_large_messages_are_bounded_by_their_bytes(server: Served) -> None:
    """Long texts too."""
    network = Network(server, black_hole, failing=1_000_000)
    with client(network.address, "large") as (sender, faults):
        for _ in range(400):
            sender.send("exception", {"text": "x" * 8_000})
        sender.close(0)
    network.close()
    kept = faults.counts["heartbeats: messages that were not sent before the end"]
    assert kept * 6 * 8_000 <= heartbeats.BUFFER_BYTES + heartbeats.BATCH_BYTES


def test_a_wrong_token_loses_nothing_silently(server: Served, caplog: pytest.LogCaptureFixture) -> None:
    """The messages are counted at the end, and no log line has the token."""
    with client(server.address, "wrong token", token="another-token-entirely") as (sender, faults):
        sender.send("progress", {"step": 1})
        wait_for(lambda: faults.counts)
        sender.close(1)
    assert numbers(server, "wrong token") == []
    assert faults.counts["heartbeats: messages that were not sent before the end"] == 2
    assert "status 401" in caplog.text
    assert "another-token" not in caplog.text


def test_a_message_that_the_server_refuses_takes_no_other_with_it(server: Served) -> None:
    """It alone is dropped and counted."""
    with client(server.address, "refused") as (sender, faults):
        with sender._lock:  # so that they travel together
            for step in range(5):
                sender.send("train_metrics", {"step": step})
            sender._buffer[2] = sender._buffer[2]._replace(message=sender._buffer[2].message._replace(number=-1))
        sender.close(LONG)
    assert numbers(server, "refused") == [0, 1, 3, 4, 5]
    assert faults.counts == {"heartbeats: messages that the server refused with status 400": 1}


def test_unsent_messages_are_kept_for_the_next_process(
    server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They arrive once, from the next process of the rank, as late messages of the first; then the files are gone."""
    monkeypatch.setenv("PROBE_LAUNCH", "one")
    address = f"http://127.0.0.1:{free_port()}"
    with client(address, "kept", spool=tmp_path / "spool") as (sender, faults):
        for step in range(700):
            sender.send("finding" if step == 600 else "train_metrics", {"step": step, "loss": math.nan}, promise=1)
        sender.close(0)
    assert "heartbeats: messages that were not sent before the end" not in faults.counts
    with client(server.address, "other job", spool=tmp_path / "spool") as (sender, faults):
        sender.close(LONG)
    assert len(list((tmp_path / "spool").iterdir())) == 1
    with client(server.address, "kept", spool=tmp_path / "spool") as (sender, faults):
        sender.send("progress", {"step": 0}, promise=600)
        wait_for(lambda: not list((tmp_path / "spool").iterdir()))
        assert server.job("kept")["states"] == {"alive": 1, "ended": 1}
    rows = server.stored("kept")
    late = [row for row in rows if row["late"]]
    assert [row["number"] for row in late] == list(range(701))
    assert late[0]["values"] == {"step": 0, "loss": "NaN"}
    assert {row["run"] for row in late}.isdisjoint({row["run"] for row in rows if not row["late"]})
    assert faults.counts == {}


def test_without_a_thread_messages_are_kept_for_the_next_process(
    server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no thread can be started nobody waits for the server; the next process of the rank sends them."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        with client(server.address, "full", spool=tmp_path / "spool") as (sender, faults):
            sender.send("progress", {"step": 1})
            sender.close(LONG)
    assert faults.counts == {"heartbeats: RuntimeError": 1}
    with client(server.address, "full", spool=tmp_path / "spool") as (sender, _):
        wait_for(lambda: not list((tmp_path / "spool").iterdir()))
        sender.close(LONG)
    assert [row["values"] for row in server.stored("full") if row["late"]] == [{"step": 1}, {"state": "ended"}]


def test_an_interrupted_close_is_finished_by_the_next(tmp_path: Path) -> None:
    """Ctrl-C while a server is waited for: a further close keeps the messages, each once."""
    accepted = threading.Event()

    def accept() -> None:
        silent.accept()
        accepted.set()

    with socket.create_server(("127.0.0.1", 0)) as silent:
        threading.Thread(target=accept, daemon=True).start()
        with client(f"http://127.0.0.1:{silent.getsockname()[1]}", "kept", spool=tmp_path / "spool") as (sender, _):
            interrupt(lambda: sender.close(LONG), accepted.is_set)
            sender.close(0)
            sender.close(0)
    assert accepted.is_set()
    (kept,) = HeartbeatSpool(tmp_path / "spool", "kept", 0, Faults()).waiting()
    assert len(kept.messages) == 1


def test_a_forked_child_sends_nothing(server: Served) -> None:
    """Its messages would have the numbers of its parent's; a lock that is held at the fork is never released there."""
    held, release = threading.Event(), threading.Event()

    def hold(sender: Heartbeats) -> None:
        with sender._lock:
            held.set()
            release.wait(LONG)

    with client(server.address, "fork") as (sender, _):
        sender.send("progress", {"step": 1})
        threading.Thread(target=hold, args=(sender,), daemon=True).start()
        held.wait(LONG)
        child = os.fork()
        if not child:
            sender.send("progress", {"step": 2})
            sender.close(LONG)
            os._exit(0)
        try:
            wait_for(lambda: os.waitpid(child, os.WNOHANG)[0])
        finally:
            release.set()
        sender.close(LONG)
    assert [row["values"] for row in server.stored("fork")] == [{"step": 1}, {"state": "ended"}]


def test_nothing_that_is_sent_raises(server: Served, caplog: pytest.LogCaptureFixture) -> None:
    """Values that are neither numbers nor texts are left out and counted, numbers of any kind arrive as they are; what
    is not sent is in a warning."""

    class Hostile(dict[str, object]):
        def items(self) -> object:  # type: ignore[override]
            raise RuntimeError("no")

    with client(server.address, "values") as (sender, faults):
        sender.send("progress", {"a": {"b": np.float32(0.5), "c": [np.int64(7), True]}, "d": object(), "e": math.inf})
        sender.send("progress", {"nan": np.nan, "huge": 10**400, "text": "\ud800\0", "none": None}, promise=math.nan)
        sender.send("no such kind", {})
        sender.send("progress", Hostile(a=1))
        sender.send("progress", None)  # type: ignore[arg-type]
        sender.close(LONG)
        sender.send("progress", {})
    first, second, *_ = (row["values"] for row in server.stored("values"))
    assert first == {"a_b": 0.5, "a_c_0": 7, "a_c_1": True, "e": "Infinity"}
    assert second == {"nan": "NaN", "huge": "Infinity", "text": "\\ud800\\x00", "none": None}
    assert faults.counts == {
        "heartbeats: TypeError": 1,
        "heartbeats: ValueError": 1,
        "heartbeats: RuntimeError": 1,
        "heartbeats: messages after the end": 1,
    } | {kind: 1 for kind in faults.counts if kind == "heartbeats: AttributeError"}
    assert "values of a message left out: 1 (no numbers or texts, or beyond 256); of a tensor, pass item" in caplog.text
    assert "a message is not sent: its kind is none of train_metrics, init_time" in caplog.text


@pytest.mark.parametrize(
    ("address", "token", "reason"),
    [
        ("10.0.0.1:8765", None, "expected an address such as"),
        ("ftp://server", None, "got ftp://..."),
        ("http://", None, "expected an address"),
        ("http://server:99999", None, "cannot be parsed"),
        ("http://user:password@server", None, "without user name and password"),
        ("http://ser ver", None, "printable ASCII"),
        ("http://server", "to ken", "without spaces"),
        ("http://server", "", "printable ASCII"),
        ("http://server", "schl\u00fcssel", "printable ASCII"),
    ],
)
def test_a_wrong_address_or_token_is_an_error_before_training(address: str, token: str | None, reason: str) -> None:
    """With the reason, and without any secret in it."""
    with pytest.raises(ValueError, match=reason) as caught:
        Heartbeats(address, token=token, job="job", rank=0, world_size=1, faults=Faults(), spool=None)
    assert "password@" not in str(caught.value)
    assert not token or token not in str(caught.value)


def test_the_ranks_of_one_launch_share_a_name() -> None:
    """From what launchers export; a process alone has a name of its own."""
    torchrun = {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "node1", "MASTER_PORT": "29500", "RANK": "3"}
    assert launch_name(torchrun, lambda: "own") == launch_name(torchrun | {"RANK": "4"}, lambda: "own") != "own"
    assert launch_name(torchrun, lambda: "own") != launch_name(torchrun | {"MASTER_PORT": "29501"}, lambda: "own")
    assert (launch_name({}, lambda: "own"), launch_name({"PROBE_LAUNCH": " a "}, lambda: "own")) == ("own", "a")


def test_messages_are_bounded_before_they_are_sent() -> None:
    """Their number of values, their depth, their texts."""
    deep: dict[str, object] = {}
    inner = deep
    for _ in range(50):
        inner["a"] = inner = dict[str, object]()
    assert flattened(deep) == ({}, 1)
    values, lost = flattened({str(n): n for n in range(300)})
    assert (len(values), lost) == (256, 44)
    ((name, text),) = flattened({"x" * 300: "y" * 10_000 + "end"})[0].items()
    assert (name, text[:100], text[-100:], len(text) <= 8192) == ("x" * 200, "y" * 100, "y" * 97 + "end", True)


def test_faults_are_logged_without_a_flood(caplog: pytest.LogCaptureFixture) -> None:
    """A server that is away is one line a minute, not one an attempt."""
    caplog.set_level(logging.WARNING)
    address = f"http://127.0.0.1:{free_port()}"
    with client(address, "away", token=None) as (sender, faults):
        sender.send("progress", {})
        wait_for(lambda: faults.counts.get("heartbeats: ConnectionError", 0) >= 3)
    assert len([record for record in caplog.records if "heartbeats" in record.getMessage()]) == 1


def test_phases_and_promises_reach_the_server(server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each heartbeat promises what is left of the rank's budget: little between steps, all of a first evaluation, and
    what the program announces, whatever its texts are."""
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path))
    monkeypatch.setenv("PROBE_SERVER_TOKEN", TOKEN)
    hang = {"floor_seconds": 5, "startup_seconds": 500}
    model = tiny_net(numpy_harness)
    optimizer = numpy_harness.optimizer("momentum", model, lr=0.1, momentum=0.9)
    loop = numpy_harness.loop(model, optimizer)
    settings = {"format": "csv", "run": {"job": "phases", "server": server.address, "hang": hang}}
    monitor = numpy_harness.TrainerMon({"wg_distribution": True, **settings})
    monitor.set_monitor(model, 1, optimizer)

    def sent(kind: str, **values: str) -> list[float]:
        rows = [row for row in server.stored("phases") if row["kind"] == kind]
        return [row["promise"] for row in rows if values.items() <= row["values"].items()]

    for _ in range(4):
        monitor.log(loss=1.0)
        train_step(loop, numpy_harness.tensor(X))
    assert monitor.flush(60)
    assert all(promise < 500 for promise in wait_for(lambda: sent("train_metrics"))[1:])
    with monitor.phase("evaluation"):
        assert 490 < wait_for(lambda: sent("progress", phase="evaluation"))[0] < 510
        monitor.promise(3600)
        wait_for(lambda: [promise for promise in sent("progress", phase="evaluation") if 3590 < promise < 3610])
    with monitor.phase("split-\udcff"):
        wait_for(lambda: sent("progress", phase="split-\\udcff"))
    monitor.promise(float("nan"))
    assert monitor.faults == {}
    monitor.stop()


def test_the_message_of_an_exception_is_sent(server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the last line of a traceback that is longer than a text may be."""
    monkeypatch.setenv("PROBE_SERVER_TOKEN", TOKEN)

    def failing(depth: int) -> None:
        if not depth:
            raise RuntimeError("device-side assert in layer 17")
        failing(depth - 1) if depth % 2 else _through(failing, depth - 1)

    feed = HeartbeatFeed(server.address, "failing", 0, 1, Faults(), tmp_path)
    try:
        failing(100)
    except RuntimeError as error:
        feed.failed(error)
    feed.close(60)
    (text,) = [row["values"]["text"] for row in server.stored("failing") if row["kind"] == "exception"]
    assert text.startswith("Traceback")
    assert text.rstrip().endswith("RuntimeError: device-side assert in layer 17")
    assert "characters left out" in text


def _through(function: Callable[[int], None], depth: int) -> None:
    function(depth)
