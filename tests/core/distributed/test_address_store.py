"""The store that the first rank keeps at an address: its members, its address, and the values that it sends."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from probe.core.distributed.address_store import STRANGERS, Client, Server
from probe.core.faults import Faults
from tests.waiting import free_port, wait_for

SECRET = b"of the ranks of this test"
SECONDS = 120.0


class Kept:
    """A server, at a port of its own."""

    def __init__(self) -> None:
        self.address = "127.0.0.1", free_port()
        self.faults = Faults()
        self.server = Server(self.address, SECRET, self.faults)

    def client(self, secret: bytes = SECRET, where: str = "run 0") -> Client:
        client = Client(self.address, secret, where)
        self.ending.callback(client.close)
        return client

    ending: ExitStack


@pytest.fixture
def kept() -> Iterator[Kept]:
    """One for the test; its thread stays until the process ends."""
    with ExitStack() as ending:
        made = Kept()
        made.ending = ending
        yield made


def test_what_is_first_stays_and_comes_to_all(kept: Kept) -> None:
    """Values reach clients that were there before and those that come later, in one part of the store."""
    one, other = kept.client(), kept.client()
    assert one.get("a") is None
    assert one.claim("a", b"1") == b"1"
    assert other.claim("a", b"2") == b"1"
    wait_for(lambda: other.get("a"))
    assert other.get("a") == kept.client().claim("a", b"3") == b"1"
    assert kept.client(where="run 1").claim("a", b"of another run") == b"of another run"


def test_it_listens_at_the_address_given_and_nowhere_else(kept: Kept) -> None:
    """It does not listen at another address of the same host."""
    socket.create_connection(kept.address, SECONDS).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", kept.address[1]), SECONDS)


def test_who_does_not_know_the_secret_is_refused(kept: Kept) -> None:
    """Both sides report it, and no value is kept or sent."""
    kept.client().claim("a", b"1")
    with pytest.raises(PermissionError, match="another secret"):
        kept.client(b"of somebody else altogether")
    with socket.create_connection(kept.address, SECONDS) as stranger:
        stranger.sendall(b"SET a 2\r\n" * 100)
        read = b"".join(iter(lambda: received(stranger), b""))
    assert read[32:] in (b"", b"\0"), "its nonce and the refusal are all that a stranger gets"
    wait_for(lambda: kept.faults.counts == {"broadcast: PermissionError": 2})
    assert kept.client().claim("a", b"3") == b"1"


def received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(4096)
    except ConnectionResetError:  # what was not read before the other side closed
        return b""


def test_a_frame_that_is_sent_again_or_altered_ends_the_connection(kept: Kept) -> None:
    """Each is valid once, at its number, and as it was made."""
    for change in (lambda frame: frame, lambda frame: frame[:-3] + b'x"]'):
        client = kept.client()
        frame = client._ours.packed("run 0/b", b"1")
        client._socket.sendall(frame + change(frame))
        with pytest.raises(ConnectionError):
            client.claim("c", b"2")
    assert kept.faults.counts == {"broadcast: PermissionError": 2}
    assert kept.client().get("c") is None


def test_strangers_keep_no_rank_out(kept: Kept) -> None:
    """Connections without a proof are limited in number, and those with one are admitted once there is room."""
    with ExitStack() as leaving:
        waiting = [leaving.enter_context(socket.create_connection(kept.address, SECONDS)) for _ in range(STRANGERS)]
        assert all(len(each.recv(32)) == 32 for each in waiting)
        with pytest.raises(ConnectionResetError):
            kept.client()
    wait_for(lambda: admitted(kept))


def admitted(kept: Kept) -> bool:
    try:
        return kept.client().claim("a", b"1") == b"1"
    except ConnectionResetError:
        return False
