"""Announcements through a store: every rank reads the same ones in the same order, and no rank waits."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probe.core.config.errors import ConfigError
from probe.core.config.load import load
from probe.core.control.config_follower import follow
from probe.core.distributed.announcements import MOST_AT_ONCE, Broadcast, StoreNotices, of_configuration
from probe.core.distributed.secret import VARIABLE, Seal
from probe.core.faults import Faults
from tests.waiting import wait_for

ROOT = Path(__file__).parents[3]

AHEAD = 3
"""Steps after which all ranks have read a message."""


SEAL = Seal(b"of this test, and of no other", "run 0")


class Kept:
    """A store in this process."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def claim(self, key: str, value: bytes) -> bytes:
        with self._lock:
            return self.values.setdefault(key, value)

    def get(self, key: str) -> bytes | None:
        return self.values.get(key)

    def close(self) -> None:
        """Nothing is held."""


class BrokenError(Exception):
    """The host is gone."""


def ranks(count: int) -> list[StoreNotices]:
    return [StoreNotices("kind", lambda: None, SEAL, Faults()) for _ in range(count)]


def exchanged(store: Kept, *notices: StoreNotices) -> None:
    for each in notices:
        each.publish(store)
    for each in notices:
        each.fetch(store)


def test_all_read_what_was_given_first() -> None:
    """The second message at a place is skipped, and its rank writes the next one."""
    store, (one, other, third) = Kept(), ranks(3)
    other.give({"from": 1})
    one.give({"from": 0})
    exchanged(store, other, one, third)
    exchanged(store, other, one, third)
    assert [each.read() for each in (one, other, third)] == [{"from": 1}] * 3
    one.give({"from": 0})
    exchanged(store, one, other, third)
    assert [each.read() for each in (one, other, third)] == [{"from": 0}] * 3
    assert [each.read() for each in (one, other, third)] == [None] * 3


def test_who_has_not_read_cannot_speak_of_what_comes_after() -> None:
    """Two equal messages before the first came back are one announcement."""
    store, (one, other) = Kept(), ranks(2)
    one.give({"number": 1})
    exchanged(store, one)
    one.give({"number": 2})
    exchanged(store, one, other)
    assert [other.read(), other.read()] == [{"number": 1}, None]


def test_what_no_rank_has_signed_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    """Garbage, another job's messages and copies of valid ones have no effect, and each rank reads what is valid in the
    same order; they are counted, and logged once."""
    store, (one, other) = Kept(), ranks(2)
    another = Seal(b"the secret of another job", "run 0")
    store.values["kind/0"] = b'{"from": "nobody"}'
    store.values["kind/1"] = another.closed("kind/1", b'{"from": "nobody"}')
    store.values["kind/2"] = b"\xff\x00"
    other.give({"from": 1})
    exchanged(store, other, one)
    assert json.loads(SEAL.opened("kind/3", store.values["kind/3"])) == {"from": 1}
    store.values["kind/4"] = store.values["kind/3"]
    one.give({"from": 0})
    exchanged(store, one, other)
    assert [one.read(), one.read()] == [other.read(), other.read()] == [{"from": 1}, None]
    one.give({"from": 0})
    exchanged(store, one, other)
    assert [one.read(), one.read()] == [other.read(), other.read()] == [{"from": 0}, None]
    assert one._faults.counts == other._faults.counts == {"broadcast: PermissionError": 4}
    assert len([record for record in caplog.records if "not signed" in record.getMessage()]) == 2, "once on each"


def test_a_stranger_cannot_keep_a_rank_busy() -> None:
    """Of many places that a stranger has filled, each look goes on to a part."""
    store, (one,) = Kept(), ranks(1)
    store.values |= {f"kind/{place}": b"nothing" for place in range(3 * MOST_AT_ONCE)}
    one.give({"from": 0})
    looks = 0
    while one.read() is None:
        before = one._place
        one.fetch(store)
        one.publish(store)
        assert one._place <= before + 2 * MOST_AT_ONCE
        looks += 1
    assert 1 < looks < 10


def test_a_message_is_valid_where_it_was_signed_and_nowhere_else() -> None:
    """Under its name, in its run, with its secret."""
    kept = SEAL.closed("control/1", b"{}")
    assert SEAL.opened("control/1", kept) == b"{}"
    code, message = json.loads(kept)
    for name, seal, value in [
        ("control/2", SEAL, kept),
        ("control/1", Seal(b"of this test, and of no other", "run 1"), kept),
        ("control/1", Seal(b"of this test, and of no othe", "run 0"), kept),
        ("control/1", SEAL, json.dumps([code, message + " "]).encode()),
        ("control/1", SEAL, json.dumps(["", message]).encode()),
        ("control/1", SEAL, b"[" * 100_000),
        ("control/1", SEAL, b"null"),
    ]:
        with pytest.raises(PermissionError, match=rf"{name}.*PROBE_BROADCAST_SECRET"):
            seal.opened(name, value)


@pytest.mark.parametrize("secret", [None, "", "   ", "too short"])
def test_a_secret_is_asked_for_before_training(monkeypatch: pytest.MonkeyPatch, secret: str | None) -> None:
    """For both kinds of store, naming the variable and how to make one."""
    monkeypatch.delenv(VARIABLE, raising=False)
    if secret is not None:
        monkeypatch.setenv(VARIABLE, secret)
    for chosen in (True, "127.0.0.1:29600"):
        with pytest.raises(ConfigError, match=rf"dynamic_broadcast.*{VARIABLE}.*openssl rand -hex 32"):
            of_configuration(load({"dynamic_broadcast": chosen}), 0, two_processes(0), Faults())


def two_processes(rank: int) -> Any:
    """A framework that has nothing but ranks and a store."""
    groups = SimpleNamespace(rank=lambda: rank, world_size=lambda: 2)
    return SimpleNamespace(name="a framework", groups=groups, parallel=SimpleNamespace(has_store=lambda: True))


def test_an_address_where_nothing_can_listen_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that is taken: of the first rank, before training."""
    monkeypatch.setenv(VARIABLE, "a secret of many characters")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        settings = load({"dynamic_broadcast": f"127.0.0.1:{taken.getsockname()[1]}"})
        with pytest.raises(ConfigError, match=r"nothing can listen at this address.*expected.*a port that is free"):
            of_configuration(settings, 0, two_processes(0), Faults())
        assert of_configuration(settings, 0, two_processes(1), Faults()) is not None


ENDING: list[dict[str, Any]] = [{"print_struct": True}, {"cc_distribution": {"enable": True, "cc_log_only": True}}]


@pytest.mark.parametrize("ending", ENDING)
def test_what_ends_training_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: Any) -> None:
    """An edit of the first rank's file that asks for it has no effect on any rank; the next edit has."""
    monkeypatch.setenv("DYNAMIC_MONITOR", "True")
    store = Kept()
    one, other = Host(tmp_path, 0, store), Host(tmp_path, 1, store)
    for step in range(1, 20):
        if step == 2:
            one.path.write_text(json.dumps({"dynamic_on": True, **ending}))
        if step == 9:
            one.path.write_text(json.dumps({"dynamic_on": True, "ops": ["max"]}))
        one.step(step)
        exchanged(store, one.notices)
        other.step(step)
        exchanged(store, other.notices)
    assert [*one.taken] == [*other.taken] == [12]
    monkeypatch.setenv(VARIABLE, "a secret of many characters")
    with pytest.raises(ConfigError, match="ends training"):
        of_configuration(load({"dynamic_broadcast": True, **ending}), 0, two_processes(0), Faults())


@pytest.mark.parametrize("ending", ENDING)
def test_what_ends_training_is_not_taken_from_another_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: Any
) -> None:
    """Though it is signed; it is counted."""
    monkeypatch.setenv("DYNAMIC_MONITOR", "True")
    store, (one,) = Kept(), ranks(1)
    one._name = "control"
    other = Host(tmp_path, 1, store)
    one.give({"step": 3, "configuration": {"dynamic_on": True, **ending}})
    exchanged(store, one, other.notices)
    for step in range(1, 6):
        other.step(step)
    assert other.taken == {}
    assert other.faults.counts == {"control: PermissionError": 1}


def test_who_comes_late_reads_everything() -> None:
    """Changes are read in the order in which they were made."""
    store, (one, late) = Kept(), ranks(2)
    for number in range(3):
        one.give({"number": number})
        exchanged(store, one)
        assert one.read() == {"number": number}
    exchanged(store, late)
    assert [late.read() for _ in range(4)] == [{"number": 0}, {"number": 1}, {"number": 2}, None]


def test_what_is_given_before_the_end_goes_out() -> None:
    """Kinds do not mix, and no thread stays."""
    store, faults = Kept(), Faults()
    one = Broadcast(lambda: store, SEAL, 2, faults)
    one.notices("a").give({"kind": "a"})
    one.notices("b").give({"kind": "b"})
    one.close()
    assert "probe-broadcast" not in {thread.name for thread in threading.enumerate()}
    for kind in "ab":
        other = StoreNotices(kind, lambda: None, SEAL, faults)
        other.fetch(store)
        assert other.read() == {"kind": kind}
    assert faults.counts == {}


def test_a_store_that_breaks_is_told_once_and_nothing_is_raised() -> None:
    """Training goes on."""
    met = threading.Event()

    class Breaks(Kept):
        def get(self, key: str) -> bytes | None:
            met.set()
            raise BrokenError(key)

    faults = Faults()
    one = Broadcast(Breaks, SEAL, 2, faults)
    one.notices("a").give({})
    assert met.wait(60)
    wait_for(lambda: faults.counts)
    one.notices("a").give({})
    assert one.notices("a").read() is None
    assert faults.counts == {"broadcast: BrokenError": 1}
    one.close()


@pytest.mark.parametrize("address", [True, False, "10.0.0.1:29600", "first-host:1", "[::1]:65535"])
def test_addresses(address: Any) -> None:
    """Of hosts by name or number."""
    assert load({"dynamic_broadcast": address}).dynamic_broadcast == address


@pytest.mark.parametrize(
    "wrong", [1, None, "", "host", "host:", ":1", "host:0", "host:65536", "a b:1", "::1:5", "http://a:1"]
)
def test_what_is_no_address_is_told(wrong: Any) -> None:
    """The message has the expected form."""
    with pytest.raises(ConfigError, match=r"dynamic_broadcast.*expected true, false, or a host and a port"):
        load({"dynamic_broadcast": wrong})


def test_what_is_said_is_the_configuration_that_the_first_rank_has() -> None:
    """Any content of the file is ignored."""
    files = [*(ROOT / "resources/configs").glob("*.json"), *(ROOT / "resources/configs").glob("*.y*ml")]
    assert files
    for file in files:
        settings = load(file)
        assert load(json.loads(json.dumps(settings.model_dump(mode="json", exclude_unset=True)))) == settings


def test_many_ranks_look_more_seldom() -> None:
    """Its announcements then lie further ahead."""
    few, many = (Broadcast(Kept, SEAL, ranks, Faults()) for ranks in (8, 10_000))
    assert few.seen_seconds == 0.5
    assert many.seen_seconds == 25.0


class Host:
    """A rank with a file of its own, of which only the first one's counts."""

    def __init__(self, folder: Path, rank: int, store: Kept) -> None:
        self.path, self.faults = folder / f"host{rank}.json", Faults()
        self.path.write_text('{"dynamic_on": false}')
        self.notices = StoreNotices("control", lambda: None, SEAL, self.faults)
        settings, content = load(self.path), self.path.read_bytes()
        ahead: Any = lambda: AHEAD  # noqa: E731
        groups: Any = SimpleNamespace(rank=lambda: rank, world_size=lambda: 2)
        self.switch: Any = follow(self.path, settings, content, 0, groups, self.faults, ahead, self.notices)
        self.taken: dict[int, tuple[str, ...]] = {}

    def step(self, number: int) -> None:
        """``number`` is about to begin."""
        if (settings := self.switch.poll(number, idle=not self.taken)) is not None:
            self.taken[number] = settings.ops


@pytest.mark.parametrize("behind", [0, 1, 2])
@pytest.mark.parametrize(
    ("edits", "taken"),
    [
        ({2: {"ops": ["max"]}}, {6: ["max"]}),
        ({2: {"ops": ["max"]}, 3: {"ops": ["min"]}}, {6: ["max"], 10: ["min"]}),
        ({2: {"ops": ["max"], "apply_at_step": 12}}, {12: ["max"]}),
        ({2: {"ops": ["max"], "apply_at_step": 900}, 6: {"ops": ["min"], "apply_at_step": 9}}, {10: ["min"]}),
        ({2: {"ops": ["max"], "apply_at_step": 900}, 6: {"ops": ["min"], "apply_at_step": 15}}, {15: ["min"]}),
        ({2: {"ops": ["max"], "apply_at_step": 15}, 6: {"ops": ["min"]}}, {15: ["min"]}),
    ],
)
def test_edits_of_the_first_ranks_file_hold_on_all_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edits: Any, taken: Any, behind: int
) -> None:
    """In the order in which they were made; one whose step is far is replaced. ``behind`` is the number of steps by
    which the other rank is, and reads, later."""
    monkeypatch.setenv("DYNAMIC_MONITOR", "True")
    store = Kept()
    one, other = Host(tmp_path, 0, store), Host(tmp_path, 1, store)
    for step in range(1, 20):
        if step - 1 in edits:
            values = json.loads(one.path.read_text()) | {"dynamic_on": True} | edits[step - 1]
            one.path.write_text(json.dumps(values))
        one.step(step)
        exchanged(store, one.notices)
        if step > behind:
            other.step(step - behind)
        exchanged(store, other.notices)
    assert one.taken == {step: tuple(ops) for step, ops in taken.items()}
    assert other.taken == {step: ops for step, ops in one.taken.items() if step < 20 - behind}
    assert one.faults.counts == other.faults.counts == {}


def test_a_second_edit_waits_until_the_first_has_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the thread that carries messages runs seldom, nothing is announced before the last announcement was read."""
    monkeypatch.setenv("DYNAMIC_MONITOR", "True")
    store = Kept()
    one, other = Host(tmp_path, 0, store), Host(tmp_path, 1, store)
    for step in range(1, 40):
        if step in (2, 8):
            ops = ["max"] if step == 2 else ["min"]
            one.path.write_text(json.dumps(json.loads(one.path.read_text()) | {"dynamic_on": True, "ops": ops}))
        one.step(step)
        if step % 12 == 0:
            exchanged(store, one.notices)
        other.step(step)
        exchanged(store, other.notices)
    assert [*one.taken.values()] == [*other.taken.values()] == [("max",), ("min",)]
