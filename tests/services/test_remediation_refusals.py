"""Webhooks that the service refuses: strangers, bodies that are malformed or hostile, labels that are no values."""

from __future__ import annotations

import json
import random
import re
import sqlite3
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.required import require
from tests.services.remediation_process import (
    UUID,
    Remediating,
    alert,
    configured,
    lines_of,
    program,
    remediating,
    webhook,
)

require("starlette")
require("uvicorn")
require("prometheus_client")
pytestmark = pytest.mark.slow

TOKEN = "a-token-of-24-characters"
HOSTILE = [
    "0; rm -rf /",
    "0 && touch {folder}/touched",
    "$(touch {folder}/touched)",
    "`touch {folder}/touched`",
    "0\ntouch {folder}/touched",
    "../../etc/passwd",
    "-pl",
    "--help",
    "",
    " 0",
    "0 ",
    "0\0",
    "\u0660",
    "\u202e0",
    "99999999999999999999",
    "1e3",
    "0x1",
    "16",
    "-1",
    "GPU-",
    UUID.upper(),
    f"{UUID}\n",
    "x" * 100_000,
    "\N{PILE OF POO}",
]
SEED, ROUNDS = 20_261_123, 200


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remediating]:
    """A service with an action for each type of a field."""
    folder = tmp_path_factory.mktemp("service")
    called = program(folder / "called", f'printf "%s\\n" "$@" >> {folder}/calls')
    token = folder / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    fields = {
        "index": {"label": "index", "type": "integer", "least": 0, "most": 15},
        "name": {"label": "name", "type": "name", "names": ["pretrain", "../odd name"]},
        "gpu": {"label": "gpu", "type": "gpu"},
        "host": {"label": "host", "type": "host"},
    }
    actions = {
        f"use_{name}": {
            "alerts": [f"Use_{name}"],
            "do": "run_program",
            "args": {"argv": [str(called), f"{{{name}}}"], "fields": {name: field}},
        }
        for name, field in fields.items()
    }
    actions["free"] = {"alerts": ["Free"], "do": "run_program", "args": {"argv": [str(called), "free"]}}
    path = configured(folder, actions, token_file=str(token), programs=[str(called)])
    with remediating(path, token=TOKEN) as started:
        yield started
        assert started.process.poll() is None


def calls(service: Remediating) -> list[str]:
    """Arguments with which the program was called."""
    return list(lines_of(service.errors.parent / "calls"))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 500_000,
        b"9" * 100_000,
        b'{"version": NaN}',
        json.dumps(webhook() | {"version": "3"}).encode(),
        json.dumps(webhook() | {"version": 4}).encode(),
        json.dumps(webhook() | {"alerts": {}}).encode(),
        json.dumps(webhook() | {"alerts": [1]}).encode(),
        json.dumps(webhook(*[alert("A")] * 1_001)).encode(),
        json.dumps(webhook(alert("A") | {"status": "burning"})).encode(),
        json.dumps(webhook(alert("A") | {"labels": []})).encode(),
        json.dumps(webhook(alert("A") | {"labels": {}})).encode(),
        json.dumps(webhook(alert("A") | {"labels": {"alertname": ""}})).encode(),
        json.dumps(webhook(alert("A") | {"labels": {"alertname": "A", "gpu_id": 1}})).encode(),
        json.dumps(webhook(alert("A") | {"labels": {"alertname": "A", "\n\u202e" * 999: None}})).encode(),
        json.dumps(webhook(alert("A", **{f"l{n}": "" for n in range(201)}))).encode(),
        json.dumps(webhook(alert("A") | {"startsAt": "yesterday"})).encode(),
        json.dumps(webhook(alert("A") | {"startsAt": 12})).encode(),
        json.dumps(webhook(alert("A") | {"startsAt": "2026-99-01T00:00:00Z"})).encode(),
        json.dumps(webhook(alert("A") | {"fingerprint": "'; DROP TABLE actions"})).encode(),
        json.dumps(webhook(alert("A") | {"fingerprint": []})).encode(),
        json.dumps(webhook(alert("Free"), alert("A") | {"status": None})).encode(),
    ],
)
def test_a_malformed_body_is_refused_with_the_place(service: Remediating, content: bytes) -> None:
    """Status 400 and a short reason; nothing of it is recorded or done."""
    before = service.get("/history")
    status, answer = service.request("POST", "/webhook", content)
    assert status == 400
    assert re.fullmatch(r"[^\n]+: expected .{3,300}", json.loads(answer)["error"])
    assert service.get("/history") == before


def test_an_answer_has_no_secret_of_a_body(service: Remediating) -> None:
    """Whoever sends a wrong value sees it again, and so does a log of the sender's."""
    for wrong in ({"startsAt": "password=hunter2"}, {"fingerprint": "password=hunter2 "}, {"status": "token=hunter2"}):
        status, answer = service.request("POST", "/webhook", json.dumps(webhook(alert("A") | wrong)).encode())
        assert (status, b"=***" in answer, b"hunter2" in answer) == (400, True, False)


@pytest.mark.parametrize("field", ["index", "name", "gpu", "host"])
def test_a_hostile_label_never_reaches_a_command(service: Remediating, field: str) -> None:
    """It is refused and recorded on one line, cut, whatever type the field has."""
    folder = service.errors.parent
    values = [value.replace("{folder}", str(folder)) for value in HOSTILE]
    if field == "gpu":
        values.remove("16")
    if field == "host":
        values = [value for value in values if value not in ("16", "1e3", "0x1", "99999999999999999999", UUID.upper())]
    before = calls(service)
    status, body = service.send(
        *(alert(f"Use_{field}", number=str(n), **{field: each}) for n, each in enumerate(values))
    )
    assert (status, len(body["actions"])) == (200, len(values))
    entries = service.get("/history")[-len(values) :]
    assert [(entry["state"], entry["message"][:7]) for entry in entries] == [("refused", "label " + field[0])] * len(
        values
    )
    assert all(entry["message"].isprintable() and len(entry["message"]) < 300 for entry in entries)
    assert (calls(service), (folder / "touched").exists()) == (before, False)


@pytest.mark.parametrize(
    ("field", "value", "argument"),
    [
        ("index", "15", "15"),
        ("index", "007", "7"),
        ("name", "../odd name", "../odd name"),
        ("gpu", UUID, UUID),
        ("host", "node-1.example.org", "node-1.example.org"),
    ],
)
def test_a_checked_value_is_one_argument(service: Remediating, field: str, value: str, argument: str) -> None:
    """Numbers in their usual form, names as the configuration has them."""
    assert service.outcome(alert(f"Use_{field}", **{field: value}))["state"] == "done"
    assert calls(service)[-1] == argument


def mutated(choice: random.Random, value: Any) -> Any:
    """A copy of ``value`` with changes at any depth."""
    if choice.random() < 0.08:
        return choice.choice([None, True, -1, 1e308, 10**30, "", "\0", "\ud800", "x" * 5_000, [], {}, [[[]]], {"": {}}])
    if isinstance(value, dict):
        return {key: mutated(choice, each) for key, each in value.items() if choice.random() > 0.03}
    if isinstance(value, list):
        return [mutated(choice, each) for each in value for _ in range(choice.choice([1, 1, 1, 2]))]
    return value


def test_no_body_breaks_the_service(service: Remediating) -> None:
    """Webhooks changed at random, in their values and in their bytes: each is answered, none with an internal error."""
    choice, seen = random.Random(SEED), set[int]()
    for number in range(ROUNDS):
        body = webhook(alert("Fuzz", number=str(number)), alert("Use_index", index=str(number)))
        data = bytearray(json.dumps(mutated(choice, body)).encode())
        for _ in range(choice.choice([0, 0, 1, 5])):
            data[choice.randrange(len(data))] = choice.randrange(256)
        status, answer = service.request("POST", "/webhook", bytes(data))
        assert isinstance(json.loads(answer), dict)
        seen.add(status)
    assert seen == {200, 202, 400}
    assert service.get("/health") == {"status": "ok"}
    assert [line for line in calls(service) if not re.fullmatch(r"[\w./ -]+", line)] == []


def test_a_database_that_cannot_be_written_answers_500(tmp_path: Path) -> None:
    """In JSON; Alertmanager sends the request again, and the alert acts once the disk is back."""
    called = program(tmp_path / "called", f"echo >> {tmp_path}/calls")
    action = {"alerts": ["Free"], "do": "run_program", "args": {"argv": [str(called)]}}
    prelude = (
        "import pathlib, sqlite3, probe.services.remediation.store as store\n"
        "before = store.Admission.insert\n"
        "def insert(self, row):\n"
        f"    if pathlib.Path({str(tmp_path / 'full')!r}).exists():\n"
        "        raise sqlite3.OperationalError('database or disk is full')\n"
        "    return before(self, row)\n"
        "store.Admission.insert = insert"
    )
    (tmp_path / "full").touch()
    with remediating(configured(tmp_path, {"free": action}, programs=[str(called)]), prelude=prelude) as service:
        assert service.send(alert("Free")) == (500, {"error": "internal error"})
        (tmp_path / "full").unlink()
        assert service.outcome(alert("Free"))["state"] == "done"
    assert len(lines_of(tmp_path / "calls")) == 1
    assert "disk is full" in service.errors.read_text()


def test_a_locked_database_is_answered_before_alertmanager_gives_up(tmp_path: Path) -> None:
    """Each of many webhooks within 10 s, with status 500; once the database is free the alert acts."""
    called = program(tmp_path / "called", f"echo >> {tmp_path}/calls")
    action = {"alerts": ["Free"], "do": "run_program", "args": {"argv": [str(called)]}}
    with remediating(configured(tmp_path, {"free": action}, programs=[str(called)])) as service:
        with closing(sqlite3.connect(tmp_path / "history.sqlite", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with ThreadPoolExecutor(8) as senders:
                began = time.monotonic()
                answers = list(senders.map(lambda number: service.send(alert("Free", number=str(number))), range(8)))
                assert time.monotonic() - began < 10
            assert answers == [(500, {"error": "internal error"})] * 8
        assert service.outcome(alert("Free"))["state"] == "done"


def test_certificates_of_clients_admit_them(tmp_path: Path) -> None:
    """Without a token: a client without a certificate, or with one of another authority, cannot send anything."""
    trustme = require("trustme")
    authority, other = trustme.CA(), trustme.CA()
    server = authority.issue_cert("127.0.0.1", common_name="server")
    (tmp_path / "key.pem").write_bytes(server.private_key_pem.bytes())
    (tmp_path / "key.pem").chmod(0o600)
    (tmp_path / "certificate.pem").write_bytes(b"".join(each.bytes() for each in server.cert_chain_pems))
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    tls = {"certificate": "certificate.pem", "key": "key.pem", "client_ca": "ca.pem"}
    tls = {name: str(tmp_path / file) for name, file in tls.items()}
    action = {"alerts": ["Free"], "do": "command_training", "args": {"commands": [{"command": "rollback_checkpoint"}]}}
    path = configured(tmp_path, {"free": action}, tls=tls, listen="0.0.0.0:0")

    def client(issuer: Any) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        if issuer is not None:
            issuer.issue_cert("client@example.org").configure_cert(context)
        return context

    with remediating(path, tls=client(authority)) as started:
        assert started.address.startswith("https://0.0.0.0:")
        service = started._replace(address=started.address.replace("0.0.0.0", "127.0.0.1"))
        assert service.outcome(alert("Free", job="x"))["state"] == "refused"
        for wrong in (None, other):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                service._replace(tls=client(wrong)).request("GET", "/health")
