"""Prometheus and Alertmanager in processes of their own, and the servers on loopback that they talk to."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from tests.http_requests import exchange
from tests.required import require_program
from tests.waiting import PATIENCE, free_port, wait_for

ROOT = Path(__file__).parents[2]
PROMETHEUS, ALERTMANAGER = ROOT / "resources" / "prometheus", ROOT / "resources" / "alertmanager"


class Server(NamedTuple):
    """Running program with an HTTP API."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def request(self, method: str, path: str, content: object = None) -> tuple[int, bytes]:
        """Status and body of an answer."""
        body = None if content is None else json.dumps(content).encode()
        status, _, answer = exchange(f"http://127.0.0.1:{self.port}", method, path, body)
        return status, answer

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


@contextmanager
def prometheus(configuration: Path, folder: Path) -> Iterator[Server]:
    """Prometheus with a configuration and its data in ``folder``."""
    options = [f"--config.file={configuration}", f"--storage.tsdb.path={folder / 'data'}", "--web.enable-lifecycle"]
    options += ["--storage.tsdb.retention.time=30d", "--storage.tsdb.retention.size=50GB"]
    with running(require_program("prometheus"), options, folder / "prometheus.log") as server:
        yield server


@contextmanager
def alertmanager(configuration: Path, folder: Path) -> Iterator[Server]:
    """Alertmanager with a configuration and its data in ``folder``."""
    options = [f"--config.file={configuration}", f"--storage.path={folder / 'data'}", "--cluster.listen-address="]
    with running(require_program("prometheus-alertmanager"), options, folder / "alertmanager.log") as server:
        yield server


@contextmanager
def node_exporter(folder: Path) -> Iterator[Server]:
    """Node exporter of this machine."""
    program = require_program("prometheus-node-exporter", "node_exporter")
    with running(program, [], folder / "node_exporter.log", "/") as server:
        yield server


@contextmanager
def running(program: str, options: Sequence[str], log: Path, ready: str = "/-/ready") -> Iterator[Server]:
    port = free_port()
    command = [program, *options, f"--web.listen-address=127.0.0.1:{port}"]
    with log.open("w") as file, subprocess.Popen(command, stdout=file, stderr=file) as process:
        server = Server(process, port, log)
        try:
            wait_for(lambda: _is_ready(server, ready), server.process)
            yield server
        finally:
            process.kill()


def _is_ready(server: Server, path: str) -> bool:
    assert server.process.poll() is None, server.log.read_text("utf-8")
    try:
        return server.request("GET", path)[0] == 200
    except OSError:
        return False
