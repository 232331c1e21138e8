"""Receiver of bulk requests on loopback: as much of Elasticsearch's ``_bulk`` as shipping logs needs, and no more."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

USER, PASSWORD = "shipper", "correct-horse-battery"


class Stored(NamedTuple):
    """A document of the receiver."""

    index: str
    fields: dict[str, Any]


class WholeAnswer(NamedTuple):
    """An answer for a request as a whole, in place of one for each document."""

    status: int
    """0: the connection is closed without an answer."""
    body: bytes = b""
    stored: bool = False
    """Whether the documents are stored first."""


class BulkReceiver:
    """Documents by id. They outlive a restart of the server, as those of the real one do."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.port, self._tls = port, tls
        self.documents: dict[str, Stored] = {}
        self.requests = 0
        self.refuse: Callable[[str, dict[str, Any]], int | None] = lambda _id, _fields: None
        """Status with which a document is refused; None: it is stored."""
        self.instead: Callable[[], WholeAnswer | None] = lambda: None
        """Answer to the next request in place of the usual one; None: the usual one."""

    def messages(self) -> list[str]:
        """The field ``message`` of all documents."""
        return [document.fields.get("message", "") for document in self.documents.values()]

    def of(self, dataset: str) -> list[dict[str, Any]]:
        """The documents of one data stream."""
        return [each.fields for each in self.documents.values() if each.index == f"logs-{dataset}-default"]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Listen, and at the end close every connection."""
        server = _Server(("127.0.0.1", self.port), _handler(self))
        if self._tls is not None:
            server.socket = self._tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
            for connection in server.connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def receive(self, body: bytes) -> dict[str, Any]:
        """Store the documents of a request; return the answer."""
        lines = body.split(b"\n")
        assert lines.pop() == b"", "a request ends with the end of a line"
        items = []
        for head, text in zip(lines[::2], lines[1::2], strict=True):
            ((action, place),) = json.loads(head).items()
            status = self._status(action, place, text)
            items.append({action: {**place, "status": status, **({} if status == 201 else {"error": {"type": "no"}})}})
        return {"took": 1, "errors": any(item["create"]["status"] != 201 for item in items), "items": items}

    def _status(self, action: str, place: dict[str, str], text: bytes) -> int:
        assert (action, set(place)) == ("create", {"_index", "_id"}), "a data stream takes nothing else"
        try:
            fields = json.loads(text.decode("utf-8"), parse_constant=_no_number, object_pairs_hook=_once)
        except ValueError:
            return 400
        if place["_id"] in self.documents:
            return 409
        if not isinstance(fields, dict) or "@timestamp" not in fields:
            return 400
        refused = self.refuse(place["_id"], fields)
        if refused is None:
            self.documents[place["_id"]] = Stored(place["_index"], fields)
        return refused or 201


class _Server(ThreadingHTTPServer):
    """Server that knows its connections."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self.connections: list[socket.socket] = []

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.append(request)
        super().process_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: clients are cut off on purpose."""


def _no_number(name: str) -> float:
    raise ValueError(name)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("a key stands twice")
    return dict(pairs)


def _handler(receiver: BulkReceiver) -> type[BaseHTTPRequestHandler]:
    expected = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            self._answer(WholeAnswer(200, b"{}"))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers["Authorization"] != expected:
                self._answer(WholeAnswer(401, b'{"error": "no", "status": 401}'))
                return
            instead = receiver.instead()
            usual = receiver.receive(body) if instead is None or instead.stored else {}
            self._answer(instead or WholeAnswer(200, json.dumps(usual).encode()))
            receiver.requests += 1

        def _answer(self, answer: WholeAnswer) -> None:
            if answer.status == 0:
                self.close_connection = True
                return
            self.send_response(answer.status)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    return Handler
