"""Requests that the heartbeat server refuses: strangers, and bodies that are too large, malformed or hostile."""

from __future__ import annotations

import http.client
import json
import re
import socket
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.required import require
from tests.services.server_process import Served, batch, serving

require("starlette")
require("uvicorn")
pytestmark = pytest.mark.slow

TOKEN = "a token of 24 characters".replace(" ", "-")
HOSTILE_NAMES = [
    "'; DROP TABLE messages; --",
    "a\0b",
    "\ud800",
    "<script>alert(1)</script>",
    "\u202egnp.exe",
    "x" * 200,
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("server") / "server.sqlite", token=TOKEN) as started:
        yield started
        assert started.process.poll() is None


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server without a token."""
    with serving(tmp_path_factory.mktemp("server") / "server.sqlite") as started:
        yield started


def message(**changes: Any) -> dict[str, Any]:
    return {"number": 0, "kind": "progress", "time": 1.0, "promise": None, "values": {}, **changes}


def test_no_token_is_in_any_answer_or_message(server: Served) -> None:
    """Neither the right one nor a wrong one."""
    _, refused = server.request("POST", "/v1/heartbeats", b"{", {"Authorization": "Bearer a-wrong-token"})
    answers = [refused, *(server.request("GET", path)[1] for path in ("/", "/metrics", "/v1/board", "/health"))]
    text = b"".join(answers) + server.errors.read_bytes()
    assert TOKEN.encode() not in text
    assert b"a-wrong-token" not in text


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b"[" * 500_000,
        b'{"a":' * 100_000,
        b"9" * 100_000,
        json.dumps(batch(), allow_nan=True).replace("1.0", "NaN").encode(),
        json.dumps(batch(), allow_nan=True).replace("1.0", "-Infinity").encode(),
        json.dumps(batch() | {"job": ""}).encode(),
        json.dumps(batch() | {"job": "x" * 201}).encode(),
        json.dumps(batch() | {"job": ["x"]}).encode(),
        json.dumps(batch() | {"rank": -1}).encode(),
        json.dumps(batch() | {"rank": 1 << 70}).encode(),
        json.dumps(batch() | {"rank": True}).encode(),
        json.dumps(batch() | {"rank": 0.5}).encode(),
        json.dumps(batch() | {"messages": []}).encode(),
        json.dumps(batch() | {"messages": [message(number=n) for n in range(501)]}).encode(),
        json.dumps(batch() | {"messages": [message(kind="finding")]}).encode(),
        json.dumps(batch() | {"messages": [message(kind="nothing")]}).encode(),
        json.dumps(batch() | {"messages": [message(number=1 << 63)]}).encode(),
        json.dumps(batch() | {"messages": [message(time="NaN")]}).encode(),
        json.dumps(batch() | {"messages": [message(promise=-1)]}).encode(),
        json.dumps(batch() | {"messages": [message(promise="NaN")]}).encode(),
        json.dumps(batch() | {"messages": [message(values={"a": {"b": 1}})]}).encode(),
        json.dumps(batch() | {"messages": [message(values={str(n): n for n in range(257)})]}).encode(),
        json.dumps(batch() | {"messages": [message(values=[1])]}).encode(),
        json.dumps(batch() | {"messages": [None]}).encode(),
    ],
)
def test_a_malformed_body_is_refused_with_the_place(server: Served, content: bytes) -> None:
    """Status 400 and a short reason, and nothing of it is stored."""
    status, answer = server.request("POST", "/v1/heartbeats", content)
    assert status == 400
    assert re.fullmatch(r"[\w.\[\]]+: expected .{3,300}", json.loads(answer)["error"])
    assert server.stored("job") == []


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_hostile_texts_are_stored_as_texts(server: Served, name: str) -> None:
    """Names like SQL, NUL, lone surrogates, marks of direction: everywhere, and later requests work."""
    hostile = batch(name, run=name, launch=name, values={name: name, "phase": name})
    assert server.post(hostile) == (200, {"stored": 1, "known": 0})
    assert server.post(hostile) == (200, {"stored": 0, "known": 1})
    row = server.stored()[-1]
    assert (row["run"], row["launch"], row["values"]["phase"]) == (row["job"],) * 3
    assert row["job"].isprintable()
    assert row["job"] == (name if name.isprintable() else name.encode("unicode_escape").decode())
    server.get("/v1/board")
    status, text = server.request("GET", "/metrics")
    assert status == 200
    sample = re.compile(r'[a-z_]+(\{([a-z]+="([^"\\\n]|\\.)*",?)+\})? \S+')
    assert [line for line in text.decode().splitlines() if line[0] != "#" and not sample.fullmatch(line)] == []


def test_numbers_of_any_size_are_stored(server: Served) -> None:
    """Beyond what floats, SQLite and JavaScript can hold."""
    raw = json.dumps(batch("huge", values={"a": 1, "b": 2})).replace('"a": 1', '"a": 1e999')
    status, _ = server.request("POST", "/v1/heartbeats", raw.replace('"b": 2', f'"b": -{"9" * 400}').encode())
    assert status == 200
    values = server.stored("huge")[0]["values"]
    assert (values["a"], values["b"]) == ("Infinity", "-Infinity")


def test_names_of_jobs_without_end_are_bounded(open_server: Served) -> None:
    """After 1,000 jobs further ones are refused for a while; those that are known still send."""
    assert open_server.post(batch("known", numbers=[0]))[0] == 200
    with ThreadPoolExecutor(64) as clients:
        answers = clients.map(lambda number: open_server.post(batch(f"job {number}"))[0], range(1_010))
    assert Counter(answers) == {200: 999, 429: 11}
    assert open_server.post(batch("known", numbers=[1]))[0] == 200
    assert len(open_server.get("/v1/board")["jobs"]) == 100
    assert len(open_server.request("GET", "/metrics")[1]) < 1 << 18


def test_garbage_on_the_socket_disturbs_nobody(server: Served) -> None:
    """Bytes that are no HTTP, and connections that end in the middle of a request."""
    place = urlsplit(server.address)
    for data in (b"\x16\x03\x01\x02", b"GET / HTTP/9.9\r\n\r\n", b"POST /v1/heartbeats HTTP/1.1\r\n", b"\0" * 70_000):
        with socket.create_connection((place.hostname, place.port)) as connection:
            connection.sendall(data)
    assert server.get("/health") == {"status": "ok"}


def test_findings_and_exceptions_have_paths_of_their_own(server: Served) -> None:
    """They are listed newest first."""
    assert server.post(batch("events", numbers=[0], kind="finding"), "/v1/findings")[0] == 200
    assert server.post(batch("events", numbers=[1], kind="exception"), "/v1/exceptions")[0] == 200
    assert server.post(batch("events", numbers=[2], kind="finding"), "/v1/exceptions")[0] == 400
    rows = server.get("/v1/events?job=events")["messages"]
    assert [(row["number"], row["kind"]) for row in rows] == [(1, "exception"), (0, "finding")]


def test_the_page_permits_its_own_files_alone(server: Served, tmp_path: Path) -> None:
    """Its policy names no other place, no inline script, and its files name no other site."""
    connection = http.client.HTTPConnection(urlsplit(server.address).netloc, timeout=30)
    for path in ("/", "/page/main.js", "/page/page.css"):
        connection.request("GET", path)
        answer = connection.getresponse()
        content = answer.read().decode()
        policy = answer.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'")
        assert "unsafe" not in policy
        assert re.findall(r"(?:https?:)?//(?!www\.w3\.org/2000/svg)[\w.]+\.\w+", content) == []
        assert re.findall(r"\son\w+=|<script>|innerHTML|eval\(", content) == []
    connection.close()
