"""Prometheus and Alertmanager in processes of their own, and the servers on loopback that they talk to."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import socket
from typing import Any, NamedTuple, TypeVar

from tests.required import require_program

ROOT = Path(__file__).parents[2]
PROMETHEUS, ALERTMANAGER = ROOT / "resources" / "prometheus", ROOT / "resources" / "alertmanager"
PATIENCE = 180.0
"""Seconds after which something that must happen counts as missing."""
Found = TypeVar("Found")


def wait_for(find: Callable[[], Found], about: str = "it does not happen") -> Found:
    """The first true value of ``find()``."""
    deadline = time.monotonic() + PATIENCE
    while not (found := find()):
        assert time.monotonic() < deadline, about
        time.sleep(0.02)  # between two looks
    return found


class Server(NamedTuple):
    """Running program with an HTTP API."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def request(self, method: str, path: str, content: object = None) -> tuple[int, bytes]:
        """Status and body of an answer."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        body = None if content is None else json.dumps(content)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        status, content = self.request("GET", path)
        assert status == 200, content
        return json.loads(content)

    def end(self) -> int:
        """The exit code after SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)


class Request(NamedTuple):
    """Request that a receiver has got."""

    time: float
    """Seconds of the monotonic clock."""
    path: str
    token: str
    """Value of the header Authorization."""
    body: Any


class Receiver:
    """Server on loopback that keeps the JSON it gets by POST, and shows ``pages`` by GET."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.pages: dict[str, str] = {}
        kept, pages = self.requests, self.pages

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                kept.append(Request(time.monotonic(), self.path, self.headers.get("Authorization", ""), body))
                self._answer("{}")

            def do_GET(self) -> None:
                self._answer(pages.get(self.path, ""))

            def _answer(self, text: str) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_address[1]
        self.address = f"http://127.0.0.1:{self.port}"

    def at(self, path: str) -> list[Request]:
        """Requests to a path, in their order."""
        return [each for each in self.requests if each.path == path]

    def __enter__(self) -> Receiver:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join(PATIENCE)
        self._server.server_close()


def free_port() -> int:
    """A port that the system has just assigned."""
    with socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
    return port


@contextmanager
def prometheus(configuration: Path, folder: Path) -> Iterator[Server]:
    """Prometheus with a configuration and its data in ``folder``."""
    options = [f"--config.file={configuration}", f"--storage.tsdb.path={folder / 'data'}", "--web.enable-lifecycle"]
    options += ["--storage.tsdb.retention.time=30d", "--storage.tsdb.retention.size=50GB"]
    with _running(require_program("prometheus"), options, folder / "prometheus.log") as server:
        yield server


@contextmanager
def alertmanager(configuration: Path, folder: Path) -> Iterator[Server]:
    """Alertmanager with a configuration and its data in ``folder``."""
    options = [f"--config.file={configuration}", f"--storage.path={folder / 'data'}", "--cluster.listen-address="]
    with _running(require_program("prometheus-alertmanager"), options, folder / "alertmanager.log") as server:
        yield server


@contextmanager
def node_exporter(folder: Path) -> Iterator[Server]:
    """Node exporter of this machine."""
    program = require_program("prometheus-node-exporter", "node_exporter")
    with _running(program, [], folder / "node_exporter.log", "/") as server:
        yield server


@contextmanager
def _running(program: str, options: Sequence[str], log: Path, ready: str = "/-/ready") -> Iterator[Server]:
    port = free_port()
    command = [program, *options, f"--web.listen-address=127.0.0.1:{port}"]
    with log.open("w") as file, subprocess.Popen(command, stdout=file, stderr=file) as process:
        server = Server(process, port, log)
        try:
            wait_for(lambda: _is_ready(server, ready), log.read_text("utf-8"))
            yield server
        finally:
            process.kill()


def _is_ready(server: Server, path: str) -> bool:
    assert server.process.poll() is None, server.log.read_text("utf-8")
    try:
        return server.request("GET", path)[0] == 200
    except OSError:
        return False
