"""Connections of servers that clients hold: each has a deadline, and none keeps another client out."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.required import require
from tests.services.server_process import PATIENCE, listening

require("starlette")
require("uvicorn")
require("psutil")
require("prometheus_client")
require("duckdb")

pytestmark = pytest.mark.slow
MODULES = ("probe.services.web.serving", "starlette.applications")
PLACES = 8
"""Connections that the small server has room for."""
ANSWER_BYTES = 32 << 20
"""Bytes of its large answer: more than sockets hold."""
READ_DEADLINES = 5
"""Deadline of a reader, as a multiple of that of headers."""
SCRIPT = f"""
import sys
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
from probe.services.web import connections
connections.HEADER_SECONDS, connections.REST_SECONDS, connections.READ_SECONDS = map(float, sys.argv[1:])
from probe.services.web.gate import Gate
from probe.services.web.listening import bound
from probe.services.web.serving import ServingLimits, WebServer
async def small(request): return Response(b"small")
async def large(request): return Response(bytes({ANSWER_BYTES}))
inner = Starlette(routes=[Route("/small", small), Route("/large", large)])
with bound("127.0.0.1", 0) as sock:
    server = WebServer(Gate(inner, []), sock, ServingLimits({PLACES}))
    server.run(lambda: print("probe: listening at", server.address, flush=True))
"""
HEAD = b"GET /small HTTP/1.1\r\nHost: localhost\r\n"
STALLS = {
    "nothing sent": b"",
    "half the headers": HEAD + b"X: ",
    "no body": HEAD + b"Content-Length: 100\r\n\r\n",
    "half a second request": HEAD + b"\r\n" + HEAD,
    "an answer that is not read": HEAD.replace(b"small", b"large") + b"\r\n",
    "a last answer that is not read": HEAD.replace(b"small", b"large") + b"Connection: close\r\n\r\n",
}
"""What a client sends before it stalls."""


@contextmanager
def small_server(folder: Path, *seconds: float) -> Iterator[str]:
    """The address of a server with few places, and deadlines for headers, bodies and readers."""
    script = folder / "server.py"
    script.write_text(SCRIPT)
    with listening([str(script), *map(str, seconds)], MODULES, folder / "errors") as (_, address):
        yield address


def connected(address: str, data: bytes) -> socket.socket:
    """A connection on which ``data`` was sent."""
    place = urlsplit(address)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(PATIENCE)
    connection.connect((place.hostname, place.port))
    connection.sendall(data)
    return connection


def status(address: str, path: str, headers: dict[str, str] | None = None) -> int:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=PATIENCE)
    try:
        connection.request("GET", path, headers=headers or {})
        return connection.getresponse().status
    finally:
        connection.close()


def received(connection: socket.socket) -> int:
    """The number of bytes until the server ends the connection."""
    number = 0
    try:
        while data := connection.recv(1 << 20):
            number += len(data)
    except ConnectionResetError:
        pass
    return number


def pass_deadline(address: str) -> None:
    """Wait until a connection on which nothing is sent has ended."""
    with connected(address, b"") as connection:
        assert received(connection) == 0


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that waits longer than any test."""
    with small_server(tmp_path_factory.mktemp("patient"), 1e6, 1e6, 1e6) as address:
        yield address


@pytest.fixture(scope="module")
def hurried(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server whose deadlines are short."""
    with small_server(tmp_path_factory.mktemp("hurried"), 0.1, 0.1, 0.1 * READ_DEADLINES) as address:
        yield address


@pytest.mark.parametrize("stall", STALLS)
def test_clients_that_stall_keep_nobody_out(patient: str, stall: str) -> None:
    """However many there are, and however they stall, a request is answered at once."""
    with ExitStack() as stack:
        for _ in range(4 * PLACES):
            stack.enter_context(connected(patient, STALLS[stall]))
            assert status(patient, "/small") == 200


@pytest.mark.parametrize("stall", STALLS)
def test_clients_that_stall_are_not_waited_for(hurried: str, stall: str) -> None:
    """Each connection ends after its deadline, without the rest of an answer that nobody took."""
    with connected(hurried, STALLS[stall]) as connection:
        if "not read" in stall:
            assert connection.recv(1, socket.MSG_PEEK)
            for _ in range(2 * READ_DEADLINES + 1):
                pass_deadline(hurried)
        assert received(connection) < ANSWER_BYTES


def test_a_connection_between_two_requests_gives_way_last(patient: str) -> None:
    """Clients in the middle of a request lose their places first."""
    place = urlsplit(patient).netloc
    client = http.client.HTTPConnection(place, timeout=PATIENCE)
    client.request("GET", "/small")
    assert client.getresponse().read() == b"small"
    before = client.sock
    with ExitStack() as stack:
        for _ in range(4 * PLACES):
            stack.enter_context(connected(patient, STALLS["half the headers"]))
        client.request("GET", "/small")
        assert client.getresponse().read() == b"small"
        assert client.sock is before
    client.close()


def test_a_slow_reader_gets_all_of_an_answer(hurried: str) -> None:
    """As long as it takes a part of it before each deadline."""
    with connected(hurried, STALLS["a last answer that is not read"]) as connection:
        number, waits = 0, 0
        while data := connection.recv(1 << 20):
            number += len(data)
            if number > (waits + 1) * ANSWER_BYTES // 16:
                waits += 1
                assert status(hurried, "/small") == 200
                pass_deadline(hurried)
    assert number > ANSWER_BYTES


SERVERS = {
    "exporter": ("exporter --port 0 --no-gpu", "/metrics"),
    "serve": ("serve --port 0 --database {folder}/server.sqlite", "/v1/board"),
    "remediate": ("remediate --config {folder}/remediation.json", "/history"),
    "view": ("view {folder}/runs --no-browser", "/"),
}
PRELUDE = """
import sys
from probe.services.server import serving as server
from probe.services.web import serving
server.MOST_CONNECTIONS = 32
serving.ServingLimits.__new__.__defaults__ = (32, *serving.ServingLimits.__new__.__defaults__[1:])
from probe.cli import main
main()
"""


@pytest.mark.parametrize("server", SERVERS)
def test_half_sent_requests_silence_no_server(tmp_path: Path, server: str) -> None:
    """All of them run in the same room: at once, not only after a deadline."""
    options, path = SERVERS[server]
    (tmp_path / "runs").mkdir()
    (tmp_path / "remediation.json").write_text(
        f'{{"listen": "127.0.0.1:0", "database": "{tmp_path}/history.sqlite", "actions": {{"r": {{"alerts": ["A"], '
        '"do": "command_training", "args": {"commands": [{"command": "rollback_checkpoint"}]}}}}'
    )
    script = tmp_path / "server.py"
    script.write_text(PRELUDE)
    arguments = [str(script), *options.format(folder=tmp_path).split()]
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    with listening(arguments, MODULES, tmp_path / "errors", environment) as (_, address), ExitStack() as stack:
        base, _, token = address.removesuffix("/metrics").partition("/?token=")
        cookie = {"Cookie": f"probe-view-{urlsplit(base).port}={token}"}
        for _ in range(64):
            stack.enter_context(connected(base, STALLS["half the headers"]))
        assert status(base, path, cookie) == 200
