"""Relay of bulk requests from rsyslog on this machine to an Elasticsearch-compatible endpoint.

omelasticsearch (8.2302) repeats a request only if the connection fails. After an answer for the whole request, such as
status 429, 401 or the 503 of a proxy, it gives the lines up. The relay passes answers on in which each document was
stored or is wrong; after any other answer it closes the connection, and rsyslog keeps the lines and tries again. Since
each document has an id of its own and is only created, none is stored twice.

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
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

SECONDS = 60.0
MOST_BYTES = 64 << 20


class Upstream:
    """Endpoint with its certificates and credentials."""

    def __init__(self, environment: dict[str, str]) -> None:
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

    def send(self, body: bytes) -> bytes:
        """Return the answer to a bulk request.

        Raises:
            OSError, http.client.HTTPException, ValueError: if it must be sent again.
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
        if answer.status not in (200, 400):  # 400: malformed as a whole; rsyslog keeps it in unanswered.jsonl
            raise ValueError(f"status {answer.status}")
        items = json.loads(content)["items"] if answer.status == 200 else []
        states = [state["status"] for item in items for state in item.values()]
        again = [state for state in states if state == 429 or state >= 500]
        if again:
            raise ValueError(f"status {again[0]} for {len(again)} of {len(states)} documents")
        return content


def handler_of(upstream: Upstream) -> type[BaseHTTPRequestHandler]:
    """Return the handler of requests that are sent on to ``upstream``."""
    problem = [""]

    def log(text: str) -> None:
        if text != problem[0]:  # a state is logged when it begins, not at each attempt
            problem[0] = text
            sys.stderr.write(f"relay: {text or 'the endpoint accepts documents again'}\n")
            sys.stderr.flush()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 2 * SECONDS

        def do_GET(self) -> None:
            self._answer(b"{}")

        do_HEAD = do_GET  # noqa: N815

        def do_POST(self) -> None:
            size = self.headers.get("Content-Length", "")
            if not size.isdecimal() or int(size) > MOST_BYTES:
                self.close_connection = True
                return
            body = self.rfile.read(int(size))
            try:
                content = upstream.send(body)
            except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, AttributeError) as error:
                log(f"documents wait: {type(error).__name__}: {error}")
                self.close_connection = True
                return
            log("")
            self._answer(content)

        def _answer(self, content: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Log nothing: requests are counted by rsyslog."""

    return Handler


def _required(environment: dict[str, str], name: str) -> str:
    value = environment.get(name, "")
    if not value:
        raise ValueError(f"{name}: expected a value in the environment, got none")
    return value


def _secret(path: Path) -> str:
    if path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        raise ValueError(f"{path}: expected a file that its owner alone can read: chmod 600")
    lines = path.read_text(encoding="utf-8").splitlines()
    if not lines or not lines[0]:
        raise ValueError(f"{path}: expected a password in the first line, got none")
    return lines[0]


def main() -> int:
    """Serve until SIGTERM."""
    try:
        upstream = Upstream(dict(os.environ))
        port = int(_required(dict(os.environ), "PROBE_LOGS_RELAY_PORT"))
        server = ThreadingHTTPServer(("127.0.0.1", port), handler_of(upstream))
    except (OSError, ValueError) as error:
        sys.stderr.write(f"relay: {error}\n")
        return 2
    server.daemon_threads = True
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    sys.stdout.write(f"relay: listening at http://127.0.0.1:{server.server_address[1]}\n")
    sys.stdout.flush()
    try:
        server.serve_forever()
    except (KeyboardInterrupt, SystemExit):
        server.server_close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
