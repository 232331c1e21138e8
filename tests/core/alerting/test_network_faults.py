"""Receivers that fail: each attempt ends in time with its reason, and the alert arrives as soon as it can."""

from __future__ import annotations

import base64
import socket
import threading
import time
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from probe.core.alerting.channels.exchange import NotReceived
from probe.core.http_client import Answer, DeadlineClient
from tests.core.alerting.receivers import (
    ACCEPTED,
    Receiver,
    alert,
    alerts_to,
    black_hole,
    context_of,
    dripping,
    raw_server,
    serving,
)
from tests.core.alerting.test_channels import channel
from tests.required import require
from tests.waiting import free_port, wait_for

require("httpx")
HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    "behaviour",
    [black_hole, dripping(b""), dripping(HEAD + b"X: "), dripping(HEAD + b"\r\n")],
    ids=["black hole", "drip from the start", "drip of headers", "drip of the answer"],
)
def test_an_attempt_ends_at_its_deadline(behaviour: Callable[[Any], None]) -> None:
    """Whole attempts are bounded, however the bytes come."""
    with raw_server(behaviour) as url:
        start = time.monotonic()
        with pytest.raises(NotReceived, match=r"within 0\.5 s"):
            channel("http", url=url).send([alert()], 0.5)
        assert 0.4 < time.monotonic() - start < 20


def test_an_endless_answer_is_cut_off() -> None:
    """Of an answer that floods, 64 KiB are read."""

    def flood(connection: Any) -> None:
        connection.sendall(HEAD + b"\r\n")
        try:
            while True:
                connection.sendall(b"x" * 65536)
        except OSError:
            pass

    with raw_server(flood) as url, pytest.raises(NotReceived, match="expected a JSON object"):  # not: within 60 s
        channel("feishu", url=url).send([alert()], 60)


def test_refused_connections_and_unknown_names_are_failures_with_their_reasons() -> None:
    """Without the address in the text."""
    for url, reason in (
        (f"http://127.0.0.1:{free_port()}/hook/0123456789abcdef", "refused"),
        ("http://no-such-host.invalid/hook/0123456789abcdef", "ConnectError"),
    ):
        with pytest.raises(NotReceived, match=reason) as failed:
            channel("http", url=url).send([alert()], 60)
        assert "0123456789abcdef" not in str(failed.value)


@pytest.mark.parametrize("status", [301, 400, 404, 500, 503])
def test_other_statuses_than_2xx_are_failures(status: int) -> None:
    """With the status and the beginning of the answer; redirections are not followed."""
    with serving(Receiver((status, {"location": "/"}, b"out of order" + b"x" * 9000))) as receiver:
        with pytest.raises(NotReceived, match=f"HTTP status {status}: out of order") as failed:
            channel("http", url=receiver.url()).send([alert()], 60)
        assert len(str(failed.value)) < 300
        assert len(receiver.requests) == 1


def test_retry_after_is_seconds_or_a_date() -> None:
    """Bounded; anything else is ignored."""
    before, after = (formatdate(time.time() + seconds, usegmt=True) for seconds in (-30, 30))
    texts = ("7", "999999999", before, "soon", "-1", "nan", "")
    seconds = [Answer(429, {"retry-after": text}, b"").retry_after(3600) for text in texts]
    assert seconds == [7, 3600, 0, None, None, None, None]
    dated = Answer(429, {"retry-after": after}, b"").retry_after(3600)
    assert dated is not None
    assert 0 < dated <= 30


def test_a_receiver_that_sets_a_time_is_not_asked_before(tmp_path: Path) -> None:
    """429 with Retry-After: the next attempt comes after that time, also while a flush is in a hurry."""
    with serving(Receiver((429, {"retry-after": "1"}, b"slow down"), ACCEPTED)) as receiver:
        alerts, faults = alerts_to([{"channel": "http", "args": {"url": receiver.url()}}], tmp_path)
        alerts.send(alert())
        assert alerts.close(60)
        first, second = receiver.requests
        assert second.time - first.time > 0.9
        assert faults.counts == {"alerts: http[0]: NotReceived": 1}


def test_a_failure_is_tried_again_after_a_pause(tmp_path: Path) -> None:
    """A second or less after the first failure, about two after the second."""
    with serving(Receiver((429, {}, b""), (200, {}, b'{"code": 11232}'), ACCEPTED)) as receiver:
        alerts, _ = alerts_to([{"channel": "feishu", "args": {"url": receiver.url()}}], tmp_path)
        alerts.send(alert())
        wait_for(lambda: len(receiver.requests) == 3)
        alerts.close(60)
        first, second, third = (request.time for request in receiver.requests)
        assert 0.4 < second - first < 20
        assert 0.9 < third - second < 20


def test_certificates_are_checked(tmp_path: Path) -> None:
    """An authority that is not trusted is a failure; with its certificate in ca_file the alert arrives."""
    trustme = require("trustme")
    certificate, trusted = context_of(trustme.CA(), tmp_path)
    with serving(Receiver(), certificate) as receiver:
        with pytest.raises(NotReceived, match="CERTIFICATE_VERIFY_FAILED"):
            channel("http", url=receiver.url()).send([alert()], 60)
        assert receiver.requests == []
        channel("http", url=receiver.url(), ca_file=str(trusted)).send([alert()], 60)
        assert len(receiver.requests) == 1


def test_an_address_that_does_not_answer_is_a_warning_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    """Logged in the background, without the address; one that answers is not mentioned, and gets no message."""
    hook = f"http://127.0.0.1:{free_port()}/hook/0123456789abcdef"
    with serving(Receiver()) as receiver:
        channels = [{"channel": "http", "args": {"url": url}} for url in (hook, receiver.url())]
        alerts, _ = alerts_to(channels)
        start = time.monotonic()
        alerts.start()
        assert time.monotonic() - start < 20
        wait_for(lambda: caplog.messages)
        alerts.close(60)
        assert receiver.requests == []
    (message,) = caplog.messages
    assert message.startswith("alerts: http[0] does not answer: NotReceived: ConnectError")
    assert "0123456789abcdef" not in message


def proxy_noting(seen: list[bytes]) -> Callable[[Any], None]:
    """A proxy that notes the beginning of each request: it opens a tunnel, or answers itself."""

    def behave(connection: socket.socket) -> None:
        seen.append(connection.recv(65_536))
        method, target = seen[-1].split(b" ")[:2]
        if method != b"CONNECT":
            connection.sendall(HEAD + b"Content-Length: 2\r\nConnection: close\r\n\r\n{}")
            return
        host, _, port = target.decode().partition(":")
        with socket.create_connection((host, int(port))) as server:
            connection.sendall(HEAD + b"\r\n")
            threading.Thread(target=pump, args=(server, connection), daemon=True).start()
            pump(connection, server)

    return behave


def pump(source: socket.socket, target: socket.socket) -> None:
    """Send all that is received, until one side ends."""
    try:
        while data := source.recv(65_536):
            target.sendall(data)
    except OSError:
        pass


def test_alerts_go_through_the_proxy_that_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its password, in a tunnel for HTTPS; not to servers of NO_PROXY."""
    certificate, trusted = context_of(require("trustme").CA(), tmp_path)
    seen: list[bytes] = []
    with (
        raw_server(proxy_noting(seen)) as url,
        serving(Receiver(), certificate) as receiver,
        serving(Receiver()) as near,
    ):
        proxy = f"http://user:pass%21@{urlsplit(url).netloc}"
        for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy", "NO_PROXY", "ALL_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HTTP_PROXY", proxy)
        monkeypatch.setenv("HTTPS_PROXY", proxy)
        channel("http", url="http://no-such-host.invalid/hook/x").send([alert()], 60)
        channel("http", url=receiver.url(), ca_file=str(trusted)).send([alert()], 60)
        monkeypatch.setenv("NO_PROXY", "example.com, localhost")
        channel("http", url=near.url()).send([alert()], 60)
    assert [request.split(b"\r\n")[0] for request in seen] == [
        b"POST http://no-such-host.invalid/hook/x HTTP/1.1",
        f"CONNECT localhost:{receiver.port} HTTP/1.1".encode(),
    ]
    credentials = b"Proxy-Authorization: Basic " + base64.b64encode(b"user:pass!")
    assert [credentials in request for request in seen] == [True, True]
    assert (len(receiver.requests), len(near.requests)) == (1, 1)


def test_a_proxy_that_drips_ends_an_attempt_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tunnel is a part of the attempt."""
    with raw_server(dripping(HEAD + b"X: ")) as url:
        monkeypatch.setenv("https_proxy", url.removesuffix("/hook/0123456789abcdef"))
        monkeypatch.setenv("no_proxy", "")
        start = time.monotonic()
        with pytest.raises(NotReceived, match=r"within 0\.5 s"):
            channel("http", url="https://no-such-host.invalid/").send([alert()], 0.5)
        assert 0.4 < time.monotonic() - start < 20


def test_heartbeats_use_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their server is near: the environment's proxy is not asked."""
    with serving(Receiver()) as receiver:
        for name in ("http_proxy", "HTTP_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
        client = DeadlineClient("a test", receiver.url())
        for _ in range(2):
            assert client.request("POST", receiver.url(), seconds=60, body=b"{}").body == ACCEPTED[2]
        client.close()
    assert len(receiver.requests) == 2


def test_a_user_and_a_password_in_an_address_are_sent() -> None:
    """As basic authentication; the address in the request does not have them."""
    with serving(Receiver()) as receiver:
        url = receiver.url("/a%20b").replace("//", "//us%40er:pa55:w0rd@")
        channel("http", url=url).send([alert()], 60)
    (request,) = receiver.requests
    assert request.headers["authorization"] == "Basic " + base64.b64encode(b"us@er:pa55:w0rd").decode()
    assert request.headers["host"] == f"localhost:{receiver.port}"
