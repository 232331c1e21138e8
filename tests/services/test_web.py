"""Servers of this package, which are one: the same deadlines, refusals and headers, and no client keeps another out."""

from __future__ import annotations

import http.client
import json
import logging
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner

from probe.cli import app
from tests.http_requests import exchange
from tests.required import require
from tests.services.server_process import listening
from tests.waiting import PATIENCE

require("starlette")
require("uvicorn")
require("psutil")
require("prometheus_client")
require("duckdb")

from probe.services.web.serving import FewRefusals  # noqa: E402 - only where uvicorn is

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
from probe.services.web import serving
serving.HEADER_SECONDS, serving.REST_SECONDS, serving.READ_SECONDS = map(float, sys.argv[1:])
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


def status(address: str, path: str) -> int:
    return exchange(address, "GET", path)[0]


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


TOKEN = "a-token-of-24-characters"
MEBIBYTE = 1 << 20


class ServerKind(NamedTuple):
    """One of the servers of this package."""

    options: str
    path: str
    """Path with data."""
    receiver: str = ""
    """Path that takes bodies, if there is one."""
    most: int = 0
    """Bytes of a body at most."""


KINDS = {
    "exporter": ServerKind("exporter --port 0 --no-gpu", "/metrics"),
    "serve": ServerKind("serve --port 0 --database {folder}/server.sqlite", "/v1/board", "/v1/heartbeats", MEBIBYTE),
    "remediate": ServerKind("remediate --config {folder}/remediation.json", "/history", "/webhook", 4 * MEBIBYTE),
    "view": ServerKind("view {folder}/runs --no-browser", "/api/runs"),
}
RECEIVERS = [name for name, kind in KINDS.items() if kind.receiver]
PRELUDE = f"""
import sys
from probe.services.server import serving as server
from probe.services.web import body, serving
body.BODY_SECONDS, serving.HEADER_SECONDS, serving.REST_SECONDS = map(float, sys.argv.pop(1).split(","))
server.MOST_CONNECTIONS = {4 * PLACES}
serving.ServingLimits.__new__.__defaults__ = ({4 * PLACES}, *serving.ServingLimits.__new__.__defaults__[1:])
from probe.cli import main
main()
"""


class Service(NamedTuple):
    """A running server."""

    kind: ServerKind
    base: str
    """Its address."""
    credentials: dict[str, str]
    """Headers of a client that may read."""
    errors: Path
    """What it writes to standard error."""

    def exchange(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] = {}
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        """Status, headers and content of the answer; a body that is no ``bytes`` is sent in chunks."""
        return exchange(self.base, method, path, body, {**self.credentials, **headers})

    def status(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] = {}) -> int:
        """Status of the answer."""
        return self.exchange(method, path, body, headers)[0]


def remediation(folder: Path, **more: str) -> Path:
    """A configuration of remediation with one action."""
    path = folder / "remediation.json"
    arguments = {"commands": [{"command": "rollback_checkpoint"}]}
    action = {"alerts": ["A"], "do": "command_training", "args": arguments}
    database = str(folder / "history.sqlite")
    path.write_text(json.dumps({"listen": "127.0.0.1:0", "database": database, "actions": {"r": action}, **more}))
    return path


def token_file(folder: Path, mode: int) -> Path:
    """A file with the token."""
    path = folder / "token"
    path.write_text(TOKEN + "\n")
    path.chmod(mode)
    return path


@contextmanager
def started(
    name: str, folder: Path, *, token: bool = False, seconds: tuple[float, float, float] = (1e6, 1e6, 1e6)
) -> Iterator[Service]:
    """A server of this package with few places, and deadlines for bodies, headers and the rest of a request."""
    kind, more = KINDS[name], [str(token_file(folder, 0o600))] if token else []
    (folder / "runs").mkdir()
    remediation(folder, **({"token_file": more[0]} if more else {}))
    script = folder / "server.py"
    script.write_text(PRELUDE)
    arguments = [str(script), ",".join(map(str, seconds)), *kind.options.format(folder=folder).split()]
    arguments += ["--token-file", *more] if token and "--port" in arguments else []
    environment = {"XDG_CACHE_HOME": str(folder / "cache")}
    with listening(arguments, MODULES, folder / "errors", environment) as (_, address):
        base, _, secret = address.removesuffix("/metrics").partition("/?token=")
        credentials = {"Authorization": f"Bearer {TOKEN}"} if token else {}
        credentials |= {"Cookie": f'theme={{"dark": 1}}; probe-view-{urlsplit(base).port}={secret}'} if secret else {}
        yield Service(kind, base, credentials, folder / "errors")


@pytest.fixture(scope="module", params=KINDS)
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Each server, without a token where it can do without."""
    with started(request.param, tmp_path_factory.mktemp("service")) as running:
        yield running
        assert "internal error" not in running.errors.read_text()


@pytest.fixture(scope="module", params=["exporter", "serve", "remediate"])
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Each server for programs, with a token."""
    with started(request.param, tmp_path_factory.mktemp("guarded"), token=True) as running:
        yield running
        assert TOKEN not in running.errors.read_text()


def test_half_sent_requests_silence_no_server(service: Service) -> None:
    """All of them run in the same room: at once, not only after a deadline."""
    with ExitStack() as stack:
        for _ in range(8 * PLACES):
            stack.enter_context(connected(service.base, STALLS["half the headers"]))
        assert service.status("GET", service.kind.path) == 200


@pytest.mark.parametrize("name", KINDS)
def test_headers_that_come_slowly_are_not_waited_for(tmp_path: Path, name: str) -> None:
    """Each server ends the connection, by the same deadline, before it asks for any token."""
    with started(name, tmp_path, seconds=(1e6, 0.1, 1e6)) as running:
        for stall in ("nothing sent", "half the headers"):
            with connected(running.base, STALLS[stall]) as connection:
                assert received(connection) == 0


@pytest.mark.parametrize("name", RECEIVERS)
def test_a_body_that_comes_slowly_is_refused(tmp_path: Path, name: str) -> None:
    """Status 408, by the same deadline."""
    head = f"POST {KINDS[name].receiver} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with (
        started(name, tmp_path, seconds=(0.1, 1e6, 1e6)) as running,
        connected(running.base, f"{head}Content-Length: 100\r\n\r\n{{".encode()) as connection,
    ):
        assert connection.recv(65_536).startswith(b"HTTP/1.1 408")


def test_a_body_in_broken_chunks_leaves_no_trace(service: Service) -> None:
    """Status 400, before any token is asked for; the log of the server gets nothing from whoever can connect."""
    head = f"POST {service.kind.receiver or service.kind.path} HTTP/1.1\r\nHost: localhost\r\n"
    body = "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n"
    with connected(service.base, (head + body).encode()) as connection:
        assert connection.recv(65_536).startswith(b"HTTP/1.1 400")
        assert received(connection) < 1000
    assert service.status("GET", service.kind.path) == 200
    assert "Traceback" not in service.errors.read_text()


def test_a_body_above_the_limit_is_refused(service: Service) -> None:
    """By its declared length at once, by its real one if it has none; a body of just the limit is read. Servers that
    take no bodies refuse the method."""
    path, most = service.kind.receiver or service.kind.path, service.kind.most
    pieces = (b" " * MEBIBYTE for _ in range(most // MEBIBYTE + 1))
    statuses = [service.status("POST", path, body) for body in (b" " * (most + 1), pieces, b" " * most)]
    assert statuses == ([413, 413, 400] if most else [405, 405, 405])


@pytest.mark.parametrize(
    "headers",
    [{"Content-Type": "text/plain"}, {"Content-Type": ""}, {"Content-Encoding": "gzip"},
     {"Content-Type": "application/x-www-form-urlencoded"}],
)  # fmt: skip
def test_only_json_is_read(service: Service, headers: dict[str, str]) -> None:
    """A browser sends anything else to another site unasked."""
    path = service.kind.receiver or service.kind.path
    assert service.status("POST", path, b"{}", headers) == (415 if service.kind.receiver else 405)
    json_type = {"Content-Type": "application/json; charset=utf-8"}
    assert service.status("POST", path, b"{", json_type) == (400 if service.kind.receiver else 405)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example:80"}, 403),
        ({"Host": ""}, 403),
        ({"Host": "localhost:1"}, 200),
        ({"Host": "[::1]"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Host": "localhost:1", "Origin": "http://localhost:1"}, 200),
        ({"Host": "localhost:1", "Origin": "https://localhost:1"}, 403),
    ],
)
def test_another_host_or_site_is_refused(service: Service, headers: dict[str, str], status: int) -> None:
    """Names of hosts may resolve to this machine, and pages of other sites send requests to it."""
    assert service.status("GET", service.kind.path, headers=headers) == status
    if status == 403 and service.kind.receiver:
        assert service.status("POST", service.kind.receiver, b"{}", headers) == 403


@pytest.mark.parametrize("header", ["", "Bearer", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", TOKEN, "Basic YTpi"])
def test_a_wrong_token_reads_and_stores_nothing(guarded: Service, header: str) -> None:
    """Status 401, before a path or a body is looked at; health alone needs none and has no data."""
    wrong = {"Authorization": header}
    for path in (guarded.kind.path, "/metrics", "/nowhere"):
        status, _, content = guarded.exchange("GET", path, headers=wrong)
        assert (status, TOKEN.encode() in content) == (401, False)
    if guarded.kind.receiver:
        assert guarded.status("POST", guarded.kind.receiver, b"{", wrong) == 401
    assert guarded.status("GET", "/health", headers=wrong) == 200
    assert guarded.status("GET", guarded.kind.path) == 200


def test_connections_without_a_file_are_logged_once_a_minute() -> None:
    """asyncio logs each of a whole backlog; its other records are kept."""
    kept, found = FewRefusals(), []
    for second, text in [(0, "accept"), (1, "accept"), (1, "other"), (59, "accept"), (60, "accept"), (30, "accept")]:
        record = logging.LogRecord("asyncio", logging.ERROR, "", 0, f"socket.{text}() out of system resource", (), None)
        record.created = 1e9 + second  # the last one: the clock was put back
        found.append(kept.filter(record))
    assert found == [True, False, True, False, True, True]


def test_every_answer_has_the_same_headers(service: Service) -> None:
    """Data, errors and refusals alike; nothing of it is stored, and no script of another place runs."""
    evil = {"Host": "evil.example"}
    for path, more in ((service.kind.path, {}), ("/nothing", {}), (service.kind.path, evil)):
        _, headers, _ = service.exchange("GET", path, headers=more)
        assert headers["Cache-Control"] == "no-store"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'")
        assert "Server" not in headers


def test_refusals_are_json(service: Service) -> None:
    """Wrong paths, methods and addresses have a status and an error."""
    long = f"{service.kind.path}?filter={'x' * 20_000}"
    for method, path, status in (("GET", "/nowhere", 404), ("DELETE", service.kind.path, 405), ("GET", long, 414)):
        found, _, content = service.exchange(method, path)
        assert (found, list(json.loads(content))) == (status, ["error"])


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("serve --token-file {file}", "--token-file {file}"),
        ("serve --dead-man-file {file}", "--dead-man-file {file}"),
        ("exporter --token-file {file}", "--token-file {file}"),
        ("remediate --config {folder}/remediation.json", "token_file"),
        ("remediate --config {folder}/remediation.json", "tls.key"),
    ],
)
def test_a_secret_that_everybody_can_read_is_refused(tmp_path: Path, command: str, option: str) -> None:
    """By each server in the same words, with the command that mends it and nothing of the secret."""
    file = token_file(tmp_path, 0o644)
    tls: Any = {"tls": {"certificate": str(file), "key": str(file)}}
    remediation(tmp_path, **(tls if option == "tls.key" else {"token_file": str(file)}))
    done = CliRunner().invoke(app, command.format(file=file, folder=tmp_path).split())
    assert (done.exit_code, done.stdout) == (2, "")
    sentence = f"{option.format(file=file)}: every user of this machine can read it; run: chmod 600 {file}"
    assert sentence in done.stderr
    assert TOKEN not in done.stderr
