"""Attacks on the page's server: by another site, without the token, with other methods, and out of its folders."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.required import require
from tests.view.view_data import WrittenRank
from tests.view.view_process import ViewServer, viewing

require("duckdb")
httpx = require("httpx")

POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ViewServer]:
    """A server over one small run, beside a file that nobody may read."""
    folder = tmp_path_factory.mktemp("guard")
    (folder / "secret.txt").write_text("secret")
    rank = WrittenRank(folder / "run", 0, world=1)
    for step in range(3):
        rank.write(step, [1.0, 2.0, 3.0])
    rank.end()
    with viewing(folder / "server", folder / "run") as started:
        yield started


def status(server: ViewServer, path: str, headers: dict[str, str] | None = None, method: str = "GET") -> int:
    """The status of a request of a browser that has the cookie."""
    return int(server.client.request(method, path, headers=headers or {}).status_code)


def raw(server: ViewServer, text: str) -> bytes:
    """The answer to a request that no client would send."""
    place = urlsplit(server.base)
    with socket.create_connection((str(place.hostname), int(place.port or 0)), timeout=30) as connection:
        connection.sendall(text.encode())
        return connection.recv(65536)


def test_the_token_becomes_a_cookie(server: ViewServer) -> None:
    """The address with it leads to the same one without; scripts cannot read the cookie, and other sites not use it."""
    with httpx.Client(trust_env=False) as client:
        answer = client.get(f"{server.address}&run=3&row=a%20b")
        assert (answer.status_code, answer.headers["location"]) == (303, "/?run=3&row=a+b")
        cookie = answer.headers["set-cookie"]
        assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
        assert client.get(f"{server.base}/api/runs").status_code == 200


@pytest.mark.parametrize("path", ["/", "/api/runs", "/api/runs/0", "/api/events", "/page/main.js", "/nothing"])
def test_without_the_cookie_nothing_is_answered(path: str, server: ViewServer) -> None:
    """Status 403, with what to do; also with the token or the cookie of another server."""
    wrong = [{}, {"Cookie": "probe-view-1=x"}, {"Cookie": f"probe-view-{urlsplit(server.base).port}=wrong"}]
    with httpx.Client(trust_env=False) as client:
        for headers in wrong:
            answer = client.get(server.base + path, headers=headers)
            assert (answer.status_code, "open the address" in answer.text) == (403, True)
        token = server.address.rpartition("=")[2]
        assert client.get(f"{server.base}/?token={token[:-1]}").status_code == 403
        assert client.get(f"{server.base}/api/runs?token={token}").status_code == 403


def test_names_of_this_machine_are_taken(server: ViewServer) -> None:
    """Also with another port, as through a tunnel."""
    port = urlsplit(server.base).port
    cookie = {"Cookie": f"probe-view-{port}={server.address.rpartition('=')[2]}"}
    for host in (f"localhost:{port}", "localhost:1", f"127.0.0.1:{port}", f"[::1]:{port}"):
        assert httpx.get(f"{server.base}/api/runs", headers={**cookie, "Host": host}).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE"])
def test_nothing_but_get_is_answered(method: str, server: ViewServer) -> None:
    """Whatever the path."""
    for path in ("/", "/api/runs", "/api/runs/0/row"):
        assert status(server, path, method=method) == 405


@pytest.mark.parametrize(
    "path",
    [
        "/page/../app.py", "/page/%2e%2e/app.py", "/page/..%2fapp.py", "/page/..%5capp.py", "/page//etc/passwd",
        "/page/app.py", "/page/.hidden.js", "/page/%00.js", "/page/main.js%00.css", "/../secret.txt", "//etc/passwd",
        "/api/runs/../../secret.txt", "/api/runs/%2e%2e", "/api/runs/-1", "/api/runs/0/../../../secret.txt",
    ],
)  # fmt: skip
def test_no_path_leads_out_of_the_page(path: str, server: ViewServer) -> None:
    """Status 404, however it is written."""
    host, token = urlsplit(server.base).netloc, server.address.rpartition("=")[2]
    cookie = f"probe-view-{urlsplit(server.base).port}={token}"
    answer = raw(server, f"GET {path} HTTP/1.1\r\nHost: {host}\r\nCookie: {cookie}\r\nConnection: close\r\n\r\n")
    assert answer.split(b" ", 2)[1] == b"404", answer
    assert b"secret" not in answer
    assert b"root:" not in answer


@pytest.mark.parametrize(
    "parameters",
    [
        {"signal": "/etc/passwd", "op": "max"},
        {"signal": "grad_reduced", "op": "max) FROM read_text('/etc/passwd') --"},
        {"signal": "grad_reduced", "op": "max", "from": "0 OR true"},
        {"signal": "grad_reduced", "op": "max", "columns": "-5"},
        {"signal": "grad_reduced", "op": "max", "rank": "1e3"},
        {"signal": "grad_reduced", "op": "max", "axis": "files"},
    ],
)
def test_parameters_are_checked(parameters: dict[str, Any], server: ViewServer) -> None:
    """Status 400, with what was expected."""
    assert "expected" in server.get("/api/runs/0/heatmap", 400, **parameters)["error"]


def test_texts_of_a_request_are_data(server: ViewServer) -> None:
    """A row's name is compared, and is no SQL."""
    found = server.binary("/api/runs/0/curve", signal="grad_reduced", op="max", row="a' OR 'x'='x")
    assert found.header["steps"] == []
    assert server.binary("/api/runs/0/curve", signal="grad_reduced", op="max", row="a").header["steps"] == [0, 1, 2]


def test_every_answer_has_the_headers_of_the_guard(server: ViewServer) -> None:
    """Pages, data, errors and refusals alike; nothing inline, nothing from elsewhere."""
    paths = ["/", "/page/main.js", "/api/runs", "/api/runs/99", "/nothing"]
    answers = [server.client.get(path) for path in paths] + [httpx.get(server.base)]
    for answer in answers:
        assert answer.headers["content-security-policy"].startswith(POLICY)
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "server" not in answer.headers
    assert [answer.headers["cache-control"] for answer in answers[:3]] == ["no-cache", "no-cache", "no-store"]


def test_the_page_has_texts_in_two_languages(server: ViewServer) -> None:
    """Both have the same messages; there is no other."""
    english, chinese = (server.get(f"/page/messages.{language}.json") for language in ("en", "zh"))
    assert english.keys() == chinese.keys()
    assert "no such file" in server.get("/page/messages.de.json", 404)["error"]
