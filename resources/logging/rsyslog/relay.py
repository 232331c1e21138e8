"""Relay of bulk requests from rsyslog on this machine to an Elasticsearch-compatible endpoint.

It writes each request to the disk, answers, and sends it on as often as it takes. rsyslog alone would lose lines:

- omelasticsearch (8.2302) repeats a request only if the connection fails. After an answer for the whole request, such
  as status 429, 401 or the 503 of a proxy, it gives the lines up.
- Lines that it waits to send again are lost when rsyslog is stopped (https://github.com/rsyslog/rsyslog/issues/5364).

Each document has an id of its own and is only created: none is stored twice. If the folder is full, the relay answers
no more, and lines wait in the queues of rsyslog.

Needs Python 3.9 and no package. Its configuration are variables of the environment, see probe.env.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import signal
import ssl
import stat
import sys
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

SECONDS = 60.0
"""Longest time of an attempt."""
SHORTEST, GROWTH, LONGEST = 0.05, 1.5, 10.0
"""Seconds from the first attempt to the second, factor from one pause to the next, and seconds of the longest."""
MOST_BYTES = 64 << 20
"""Largest request."""
MOST_SPOOLED = 4 << 30
"""Bytes of all requests that wait."""


class MalformedRequestError(Exception):
    """Request that the endpoint will never take."""


class Upstream:
    """Endpoint with its certificates and credentials."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        endpoint = urlsplit(_required(environment, "PROBE_LOGS_ENDPOINT"))
        if endpoint.scheme not in ("http", "https") or not endpoint.hostname:
            raise ValueError("PROBE_LOGS_ENDPOINT: expected https://HOST:PORT")
        self.host, self.path = endpoint.hostname, endpoint.path.rstrip("/") + "/_bulk"
        self.port = endpoint.port or 9200
        self.tls = None
        if endpoint.scheme == "https":
            self.tls = ssl.create_default_context(cafile=environment.get("PROBE_LOGS_CA") or None)
        self.headers = {"Content-Type": "application/x-ndjson"}
        user = environment.get("PROBE_LOGS_RELAY_USER")
        if user:
            secret = _secret(Path(_required(environment, "PROBE_LOGS_RELAY_PASSWORD_FILE")))
            self.headers["Authorization"] = "Basic " + base64.b64encode(f"{user}:{secret}".encode()).decode()

    def send(self, body: bytes) -> list[dict[str, object]]:
        """Return the answer for each document, all of which are stored, or wrong.

        Raises:
            MalformedRequestError: if the request as a whole is wrong.
            OSError, http.client.HTTPException, ValueError, KeyError, TypeError: if it must be sent again.
        """
        if self.tls is None:
            connection = http.client.HTTPConnection(self.host, self.port, timeout=SECONDS)
        else:
            connection = http.client.HTTPSConnection(self.host, self.port, timeout=SECONDS, context=self.tls)
        try:
            connection.request("POST", self.path, body, self.headers)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.status == 400:
            raise MalformedRequestError(content[:500].decode("utf-8", "replace"))
        if answer.status != 200:
            raise ValueError(f"status {answer.status}")
        items = [state for item in json.loads(content)["items"] for state in item.values()]
        again = [item["status"] for item in items if item["status"] == 429 or item["status"] >= 500]
        if again:
            raise ValueError(f"status {again[0]} for {len(again)} of {len(items)} documents")
        return items


class Spool:
    """Requests on disk, in their order."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._changed = threading.Condition()
        for left in folder.glob("*.partial"):
            left.unlink()
        self._waiting = sorted(folder.glob("*.request"))
        self._bytes = sum(path.stat().st_size for path in self._waiting)
        self._next = 1 + max((int(path.stem) for path in self._waiting), default=0)

    def add(self, body: bytes) -> None:
        """Keep a request; when this returns, it outlives a failure of power.

        Raises:
            OSError: if there is no room.
        """
        with self._changed:
            if self._bytes + len(body) > MOST_SPOOLED:
                raise OSError(f"{self.folder}: {self._bytes >> 20} MiB wait, which is all that may")
            path = self.folder / f"{self._next:020d}.request"
            partial = path.with_suffix(".partial")
            with partial.open("wb") as file:
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            partial.rename(path)
            self._next += 1
            self._bytes += len(body)
            self._waiting.append(path)
            self._changed.notify()

    def first(self) -> Path:
        """Return the oldest request, as soon as there is one."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting)
            return self._waiting[0]

    def remove(self, path: Path) -> None:
        """Forget the oldest request."""
        with self._changed:
            self._waiting.remove(path)
            self._bytes -= path.stat().st_size
            path.unlink()

    def keep_refused(self, refused: list[tuple[object, bytes]]) -> None:
        """Append documents that the endpoint does not take, with the reasons, to a file."""
        path = self.folder / "refused.jsonl"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as file:
            for why, document in refused:
                text = document.decode("utf-8", "replace")
                file.write(json.dumps({"why": why, "document": text}, ensure_ascii=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


class Journal:
    """Lines to standard error: a state when it begins, and not at each attempt."""

    def __init__(self) -> None:
        self._last = ""

    def log(self, text: str) -> None:
        """Log ``text``, unless it is the last one again; empty: all is well."""
        if text != self._last:
            self._last = text
            sys.stderr.write(f"relay: {text or 'the endpoint takes documents again'}\n")
            sys.stderr.flush()


def forward(spool: Spool, upstream: Upstream, journal: Journal) -> None:
    """Send requests on, one after the other, for ever."""
    while True:
        path, pause = spool.first(), SHORTEST
        while not _forwarded(path, spool, upstream, journal):
            time.sleep(pause)
            pause = min(GROWTH * pause, LONGEST)
        spool.remove(path)


def _forwarded(path: Path, spool: Spool, upstream: Upstream, journal: Journal) -> bool:
    """Send a request on once; return whether it is done with."""
    try:
        refused = _refused(path.read_bytes(), upstream)
        if refused:
            spool.keep_refused(refused)
    except Exception as error:  # noqa: BLE001 - whatever the answer is, the next attempt comes
        journal.log(f"documents wait: {type(error).__name__}: {error}")
        return False
    journal.log("")
    return True


def _refused(body: bytes, upstream: Upstream) -> list[tuple[object, bytes]]:
    """Send a request; return the documents that are stored neither now nor before, with the reasons."""
    documents = [line for line in body.split(b"\n") if line][1::2]
    try:
        items = upstream.send(body)
    except MalformedRequestError as error:
        return [(str(error), document) for document in documents]
    if len(items) != len(documents):
        raise ValueError(f"{len(items)} answers for {len(documents)} documents")
    return [(item, documents[at]) for at, item in enumerate(items) if item["status"] not in (200, 201, 409)]


class Relay(ThreadingHTTPServer):
    """Server for rsyslog on this machine."""

    daemon_threads = True

    def __init__(self, port: int, spool: Spool) -> None:
        super().__init__(("127.0.0.1", port), RelayHandler)
        self.spool, self.journal = spool, Journal()


class RelayHandler(BaseHTTPRequestHandler):
    """Connection of rsyslog."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # it delays each answer by 40 ms
    server: Relay

    def do_GET(self) -> None:
        """Answer to the question whether this is alive."""
        self._answer(b"{}")

    def do_POST(self) -> None:
        """Keep a request. Without room for it, close the connection: rsyslog sends it again later."""
        size = self.headers.get("Content-Length", "")
        try:
            if not size.isdecimal() or int(size) > MOST_BYTES:
                raise OSError(f"a request of {size or 'unknown'} bytes is too large")
            body = self.rfile.read(int(size))
            self.server.spool.add(body)
        except OSError as error:
            self.server.journal.log(f"rsyslog waits: {error}")
            self.close_connection = True
            return
        self.server.journal.log("")
        count = sum(1 for line in body.split(b"\n") if line) // 2
        self._answer(json.dumps({"errors": False, "items": [{"create": {"status": 201}}] * count}).encode())

    def _answer(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Log nothing: rsyslog counts requests."""


def _required(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "")
    if not value:
        raise ValueError(f"{name}: expected a value in the environment, got none")
    return value


def _secret(path: Path) -> str:
    if path.stat().st_mode & stat.S_IROTH:
        raise ValueError(f"{path}: every user of this machine can read it; run: chmod 600 {path}")
    lines = path.read_text(encoding="utf-8").splitlines()
    if not lines or not lines[0]:
        raise ValueError(f"{path}: expected a password in the first line, got none")
    return lines[0]


def main() -> int:
    """Relay until SIGTERM; what waits then is sent after the next start."""
    try:
        upstream = Upstream(os.environ)
        spool = Spool(Path(_required(os.environ, "PROBE_LOGS_RELAY_SPOOL")))
        server = Relay(int(_required(os.environ, "PROBE_LOGS_RELAY_PORT")), spool)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"relay: {error}\n")
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    threading.Thread(target=forward, args=(spool, upstream, Journal()), daemon=True).start()
    sys.stdout.write(f"relay: listening at http://127.0.0.1:{server.server_address[1]}\n")
    sys.stdout.flush()
    try:
        server.serve_forever()
    except (KeyboardInterrupt, SystemExit):
        server.server_close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
