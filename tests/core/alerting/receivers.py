"""Receivers of alerts on loopback: real servers with real sockets."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from probe.core.alerting.alerts import Alerts
from probe.core.config.load import load
from probe.core.faults import Faults
from probe.core.records import Alert
from tests.required import require
from tests.waiting import wait_for

uvicorn = require("uvicorn")
Answer = tuple[int, dict[str, str], bytes]
ACCEPTED: Answer = (200, {}, b'{"code": 0, "msg": "success"}')


class Request(NamedTuple):
    """A request that was received."""

    path: str
    headers: dict[str, str]
    body: Any
    time: float
    size: int


class Receiver:
    """An ASGI application that answers with the next of ``answers``; the last one stays."""

    def __init__(self, *answers: Answer) -> None:
        self.answers, self.requests, self.port = list(answers or (ACCEPTED,)), list[Request](), 0
        self.scheme = "http"

    async def __call__(self, scope: Any, receive: Callable[..., Any], send: Callable[..., Any]) -> None:
        if scope["type"] != "http":
            raise RuntimeError("no lifespan")
        raw, more = b"", True
        while more:
            message = await receive()
            raw, more = raw + message["body"], message.get("more_body", False)
        if scope["method"] == "HEAD":
            status, headers, body = ACCEPTED[0], dict[str, str](), b""
        else:
            sent = {name.decode(): value.decode() for name, value in scope["headers"]}
            self.requests.append(Request(scope["path"], sent, json.loads(raw), time.monotonic(), len(raw)))
            status, headers, body = self.answer(self.requests[-1])
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": pairs})
        await send({"type": "http.response.body", "body": body})

    def answer(self, request: Request) -> Answer:
        return self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)

    def url(self, path: str = "/hook/0123456789abcdef") -> str:
        return f"{self.scheme}://localhost:{self.port}{path}"


class Choosy(Receiver):
    """Receiver that refuses each message with the word ``poison`` in it."""

    def __init__(self, refusal: Answer) -> None:
        super().__init__()
        self.refusal, self.accepted = refusal, list[Request]()

    def answer(self, request: Request) -> Answer:
        if "poison" in json.dumps(request.body):
            return self.refusal
        self.accepted.append(request)
        return ACCEPTED

    def has(self, key: str) -> bool:
        return any(f"Spike of {key}" in json.dumps(request.body) for request in self.accepted)


@contextmanager
def serving(receiver: Receiver, certificate: tuple[Path, Path] | None = None) -> Iterator[Receiver]:
    """Serve on a port that the system chooses."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        receiver.port, receiver.scheme = listening.getsockname()[1], "https" if certificate else "http"
        tls = {"ssl_certfile": str(certificate[0]), "ssl_keyfile": str(certificate[1])} if certificate else {}
        server = uvicorn.Server(uvicorn.Config(receiver, log_level="critical", lifespan="off", **tls))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])), daemon=True)
        thread.start()
        wait_for(lambda: server.started)
        yield receiver
        server.should_exit = server.force_exit = True
        thread.join(60)


@contextmanager
def raw_server(behaviour: Callable[[socket.socket], None]) -> Iterator[str]:
    """Serve each connection by a function on a thread of its own; yield the address."""
    open_ones: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                open_ones.append(connection)
                threading.Thread(target=behaviour, args=(connection,), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/hook/0123456789abcdef"
        listening.shutdown(socket.SHUT_RDWR)
        for connection in open_ones:
            connection.close()


def black_hole(connection: socket.socket) -> None:
    """Read everything and never answer."""
    try:
        while connection.recv(65536):
            pass
    except OSError:
        pass


def dripping(start: bytes) -> Callable[[socket.socket], None]:
    """A byte every 20 ms after ``start``, for ever."""

    def drip(connection: socket.socket) -> None:
        try:
            connection.sendall(start)
            while True:
                connection.sendall(b"x")
                time.sleep(0.02)
        except OSError:
            pass

    return drip


def alert(key: str = "spike loss", severity: Any = "warning", text: str = "loss 9 at step 3", **labels: str) -> Alert:
    return Alert(key, "run", severity, f"Spike of {key}", text, labels, time.time())


def alerts_to(
    channels: list[dict[str, Any]], directory: Path | None = None, group: float = 0.0, rank: int = 0, **more: Any
) -> tuple[Alerts, Faults]:
    """Alerts with these channels, and their faults."""
    faults = Faults()
    settings = load({"alert": {"group_seconds": group, "channels": channels}}).alert
    return Alerts(settings, job="pretraining", rank=rank, directory=directory, faults=faults, **more), faults


def signed(secret: str, body: dict[str, Any]) -> bool:
    """Whether the signature is Feishu's: by the documentation's steps, apart from the sender's code."""
    key = "\n".join((body["timestamp"], secret)).encode("ascii")
    digest = hmac.HMAC(key, digestmod=hashlib.sha256).digest()
    return base64.b64decode(body["sign"]) == digest and abs(int(body["timestamp"]) - time.time()) < 3600


def text_of(request: Request) -> str:
    """Title and lines of a message of Feishu."""
    post = request.body["content"]["post"]["zh_cn"]
    return "\n".join([post["title"], *("".join(part["text"] for part in line) for line in post["content"])])


def context_of(authority: Any, folder: Path) -> tuple[tuple[Path, Path], Path]:
    """Files of a certificate for localhost with its key, and of the authority."""
    issued = authority.issue_cert("localhost")
    chain, key, trusted = folder / "chain.pem", folder / "key.pem", folder / "ca.pem"
    for number, blob in enumerate(issued.cert_chain_pems):
        blob.write_to_path(str(chain), append=number > 0)
    issued.private_key_pem.write_to_path(str(key))
    authority.cert_pem.write_to_path(str(trusted))
    assert ssl.create_default_context(cafile=str(trusted))
    return (chain, key), trusted
