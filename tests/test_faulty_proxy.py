"""The proxy passes requests on, counts them, and makes the trouble that it was told to make, with a real server."""

from __future__ import annotations

import http.client
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.faulty_proxy import FaultyProxy, ProxiedRequest, Trouble

TEXT = b"0123456789" * 1000


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Write nothing."""


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[str]:
    """A server of one file."""
    (tmp_path / "some file.bin").write_bytes(TEXT)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def fetched(proxy: FaultyProxy, name: str = "some%20file.bin") -> bytes:
    with urllib.request.urlopen(f"{proxy.url}/{name}", timeout=10) as answer:
        return bytes(answer.read())


def test_passes_on_and_counts(upstream: str) -> None:
    """Contents are the server's, and each request counts for its object, listings apart."""
    with FaultyProxy(upstream) as proxy:
        assert fetched(proxy) == fetched(proxy) == TEXT
        with pytest.raises(urllib.error.HTTPError, match="404"):
            fetched(proxy, "?list-type=2&prefix=out/".replace("?", "none?"))
        assert proxy.of_objects() == {"/some file.bin": 2}
        assert proxy.listings() == ["out/"]
        proxy.forget()
        assert not proxy.of_objects()


def test_answers_503_cuts_and_delays(upstream: str) -> None:
    """The first request is refused, the second cut off, the third late; the fourth is as without a proxy."""
    late = threading.Event()

    def faults(request: ProxiedRequest) -> Trouble | None:
        if request.number == 3:
            late.set()
        return [Trouble(status=503), Trouble(cut_after=7), Trouble(delay_seconds=0.01), None][request.number - 1]

    with FaultyProxy(upstream, faults) as proxy:
        with pytest.raises(urllib.error.HTTPError, match="503"):
            fetched(proxy)
        with pytest.raises(http.client.IncompleteRead) as cut:
            fetched(proxy)
        assert cut.value.partial == TEXT[:7]
        assert fetched(proxy) == TEXT
        assert late.is_set()
        assert fetched(proxy) == TEXT


def test_a_server_that_is_gone(upstream: str) -> None:
    """The connection is closed, as the server itself would."""
    with FaultyProxy("http://127.0.0.1:1") as proxy, pytest.raises((http.client.HTTPException, OSError)):
        fetched(proxy)
    assert upstream
