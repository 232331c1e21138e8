"""HTTP proxy in front of a server of objects (S3): it counts requests, delays them, cuts them off, or answers 503.

def faults(request):
    return Trouble(status=503) if request.number == 1 else None

with FaultyProxy("http://127.0.0.1:8333", faults) as proxy:
    ...  # requests to proxy.url; the first of each object fails
proxy.of_objects()  # number of requests by path
"""

from __future__ import annotations

import http.client
import socket
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

AT_ONCE = 1 << 16
HOPS = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"})
"""Headers of a response that this server writes itself."""
SLOW_DOWN = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>SlowDown</Code>'
    b"<Message>Please reduce your request rate.</Message></Error>"
)


class ProxiedRequest(NamedTuple):
    """Request that has come to the proxy."""

    method: str
    path: str
    """Bucket and object, such as ``/runs/out/index.json``."""
    query: dict[str, list[str]]
    number: int
    """Counts the requests of this method and path, from 1."""
    range: str = ""
    """Header ``Range``, such as ``bytes=0-7``."""

    @property
    def is_listing(self) -> bool:
        """True for a request that lists objects: its path is a bucket."""
        return self.method == "GET" and ("list-type" in self.query or "prefix" in self.query)


class Trouble(NamedTuple):
    """Fault of one request."""

    status: int = 0
    """Status that is answered without asking the server; 0 to ask it."""
    cut_after: int | None = None
    """Bytes of the answer's body after which the connection is closed."""
    delay_seconds: float = 0.0
    """Time before the request is passed on; closing the proxy ends it."""


Faults = Callable[[ProxiedRequest], Trouble | None]


def healthy(_: ProxiedRequest) -> None:
    """No trouble."""


class FaultyProxy:
    """Proxy in threads of this process.

    Args:
        upstream: URL of the server, such as ``http://127.0.0.1:8333``.
        faults: called with each request, from several threads; it may be replaced at any time.
    """

    def __init__(self, upstream: str, faults: Faults = healthy) -> None:
        self.upstream, self.faults = urlsplit(upstream), faults
        self.requests: list[ProxiedRequest] = []
        self.closing = threading.Event()
        self._lock, self._numbers = threading.Lock(), Counter[tuple[str, str]]()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.proxy = self
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> FaultyProxy:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def of_objects(self) -> Counter[str]:
        """Number of requests (GET and HEAD) by path, listings left out."""
        read = [request for request in self.requests if request.method in ("GET", "HEAD") and not request.is_listing]
        return Counter(request.path for request in read)

    def listings(self) -> list[str]:
        """Prefixes that were listed, one a request."""
        return [request.query.get("prefix", [""])[0] for request in self.requests if request.is_listing]

    def forget(self) -> None:
        """Begin to count anew."""
        with self._lock:
            self.requests.clear()
            self._numbers.clear()

    def noted(self, method: str, target: str, span: str) -> ProxiedRequest:
        """Count a request."""
        parts = urlsplit(target)
        path = unquote(parts.path)
        with self._lock:
            self._numbers[method, path] += 1
            query = parse_qs(parts.query, keep_blank_values=True)
            request = ProxiedRequest(method, path, query, self._numbers[method, path], span)
            self.requests.append(request)
        return request


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    proxy: FaultyProxy


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server
    timeout = 60

    def _pass(self) -> None:
        proxy, body = self.server.proxy, self._body()
        request = proxy.noted(self.command, self.path, self.headers.get("Range", ""))
        trouble = proxy.faults(request) or Trouble()
        if trouble.delay_seconds:
            proxy.closing.wait(trouble.delay_seconds)
        if trouble.status:
            self._answer(trouble.status, {"Content-Type": "application/xml"}, SLOW_DOWN)
            return
        upstream = http.client.HTTPConnection(proxy.upstream.hostname or "", proxy.upstream.port, timeout=60)
        try:
            self._forward(upstream, body, trouble)
        except OSError:
            self._cut()  # the server is gone: as if it were asked directly
        finally:
            upstream.close()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass  # noqa: N815 - names of http.server

    def _forward(self, upstream: http.client.HTTPConnection, body: bytes, trouble: Trouble) -> None:
        """Pass the request on with its own Host, which is part of its signature, and the answer back."""
        upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in ("connection", "transfer-encoding", "content-length", "expect"):
                upstream.putheader(name, value)
        upstream.putheader("Content-Length", str(len(body)))
        upstream.endheaders(body)
        answer = upstream.getresponse()
        content = answer.read()
        headers = {name: value for name, value in answer.getheaders() if name.lower() not in HOPS}
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        self._answer(answer.status, headers, content, length, trouble.cut_after)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(
        self,
        status: int,
        headers: dict[str, str],
        content: bytes,
        length: str | None = None,
        cut_after: int | None = None,
    ) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status not in (204, 304):
            self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(content if cut_after is None else content[:cut_after])
        if cut_after is not None and cut_after < len(content):
            self._cut()

    def _cut(self) -> None:
        self.close_connection = True
        self.wfile.flush()
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as in http.server
        """Write nothing."""
