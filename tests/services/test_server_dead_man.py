"""The dead man's address: called as long as the server works, and only then."""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.required import require
from tests.services.server_process import serving
from tests.waiting import wait_for

require("starlette")
require("uvicorn")
require("httpx")
pytestmark = pytest.mark.slow

SECRET = "/ping/secret-name-of-a-check"


class Watcher(ThreadingHTTPServer):
    """A server that notes the paths it is asked for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Noting)
        self.paths: list[str] = []
        self.status = 200

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}{SECRET}"


class Noting(BaseHTTPRequestHandler):
    server: Watcher

    def do_GET(self) -> None:
        self.server.paths.append(self.path)
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Nothing is printed."""


@pytest.fixture
def watcher() -> Iterator[Watcher]:
    with Watcher() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_it_is_called_while_the_database_can_be_written(watcher: Watcher, tmp_path: Path) -> None:
    """Again and again; not while the disk is full; again after that. The address is in no message."""
    (tmp_path / "address").write_text(watcher.address + "\n")
    (tmp_path / "address").chmod(0o600)
    options = ("--dead-man-file", str(tmp_path / "address"), "--dead-man-seconds", "0.1")
    with serving(tmp_path / "server.sqlite", *options) as server:
        wait_for(lambda: len(watcher.paths) >= 2, server.process)
        watcher.status = 500
        wait_for(lambda: "answers with status 500" in server.errors.read_text(), server.process)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        wait_for(lambda: "address is not called" in server.errors.read_text(), server.process)
        called = len(watcher.paths)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        wait_for(lambda: len(watcher.paths) > called, server.process)
        assert server.end() == 0
        assert set(watcher.paths) == {SECRET}
        assert "secret-name" not in server.errors.read_text()
