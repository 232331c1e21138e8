"""The remediation service in a process, programs for its actions, and webhooks as Alertmanager sends them."""

from __future__ import annotations

import json
import signal
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.forks import Forked
from tests.http_requests import bearer, exchange
from tests.services.server_process import listening
from tests.waiting import PATIENCE, wait_for

LAST = ("ignored", "refused", "done", "failed", "interrupted")
HOST = "node1"
MODULES = ("probe.cli.remediate", "probe.services.remediation.app", "uvicorn.protocols.http.h11_impl", "psutil")
UUID = "GPU-0a1b2c3d-1111-2222-3333-4444444abcde"


class Remediating(NamedTuple):
    """A running service."""

    process: Forked
    address: str
    token: str | None
    errors: Path
    """What it writes to standard error."""
    tls: ssl.SSLContext | None = None

    def request(
        self, method: str, path: str, content: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Status and body of an answer."""
        sent = bearer(self.token) | (headers or {})
        status, _, answer = exchange(self.address, method, path, content, sent, self.tls)
        return status, answer

    def get(self, path: str) -> Any:
        status, content = self.request("GET", path)
        assert status == 200, content
        return json.loads(content)

    def send(self, *alerts: dict[str, Any]) -> tuple[int, Any]:
        """Status and body of the answer to a webhook."""
        status, answer = self.request("POST", "/webhook", json.dumps(webhook(*alerts)).encode())
        return status, json.loads(answer)

    def entry(self, number: int) -> dict[str, Any]:
        """An entry of the history."""
        (found,) = (entry for entry in self.get("/history") if entry["id"] == number)
        return found

    def ended(self, number: int) -> dict[str, Any]:
        """An entry of the history, once its action has ended."""
        wait_for(lambda: self.entry(number)["state"] in LAST, self.process)
        return self.entry(number)

    def outcome(self, alert: dict[str, Any]) -> dict[str, Any]:
        """The entry of the one action that an alert begins, once that has ended."""
        status, body = self.send(alert)
        assert status in (200, 202), body
        (action,) = body["actions"]
        return self.ended(action["id"])

    def metric(self, line: str) -> float:
        """The value of a sample; 0 if there is none."""
        text = self.request("GET", "/metrics")[1].decode()
        return next((float(each.rpartition(" ")[2]) for each in text.splitlines() if each.startswith(line)), 0.0)

    def end(self, number: int = signal.SIGTERM) -> int:
        """The exit code after a signal."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


@contextmanager
def remediating(
    configuration: Path, *options: str, token: str | None = None, tls: ssl.SSLContext | None = None, prelude: str = ""
) -> Iterator[Remediating]:
    """A service that is killed at the end, if it still runs; ``prelude`` is run in it first."""
    errors, script = configuration.with_suffix(".errors"), configuration.with_suffix(".py")
    script.write_text(f"{prelude}\nfrom probe.cli import main\nmain()\n")
    arguments = [str(script), "remediate", "--config", str(configuration), *options]
    with listening(arguments, MODULES, errors) as (process, address):
        yield Remediating(process, address, token, errors, tls)


def configured(folder: Path, actions: dict[str, Any], **more: Any) -> Path:
    """A configuration file; its database lies beside it."""
    values = {
        "listen": "127.0.0.1:0",
        "database": str(folder / "history.sqlite"),
        "dry_run": False,
        "host": {"names": [HOST]},
        "limits": {"per_hour": 1_000},
        "actions": {
            name: {"per_hour": 1_000, "per_target_per_hour": 1_000, **action} for name, action in actions.items()
        },
        **more,
    }
    path = folder / "remediation.json"
    path.write_text(json.dumps(values))
    return path


def program(path: Path, *lines: str) -> Path:
    """A program that anyone may run."""
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return path


def alert(alertname: str, /, start: int = 0, status: str = "firing", **labels: str) -> dict[str, Any]:
    """An alert within a webhook; its fingerprint depends on its labels, as in Alertmanager."""
    labels = {"alertname": alertname, "instance": f"{HOST}:9100", "severity": "critical", **labels}
    digest = 0xCBF29CE484222325
    for byte in json.dumps(labels, sort_keys=True).encode():
        digest = ((digest ^ byte) * 0x100000001B3) % (1 << 64)
    return {
        "status": status,
        "labels": labels,
        "annotations": {"summary": "A summary.", "description": "A description."},
        "startsAt": f"2026-11-{20 + start:02}T04:00:00.123456789Z",
        "endsAt": "0001-01-01T00:00:00Z" if status == "firing" else "2026-11-22T05:00:00Z",
        "generatorURL": "http://prometheus:9090/graph?g0.expr=up&g0.tab=1",
        "fingerprint": f"{digest:016x}",
    }


def webhook(*alerts: dict[str, Any]) -> dict[str, Any]:
    """A body with the fields that Alertmanager 0.25 sends."""
    return {
        "receiver": "remediation",
        "status": "firing",
        "alerts": list(alerts),
        "groupLabels": {"alertname": "x"},
        "commonLabels": {},
        "commonAnnotations": {},
        "externalURL": "http://alertmanager:9093",
        "version": "4",
        "groupKey": '{}:{alertname="x"}',
        "truncatedAlerts": 0,
    }


def lines_of(path: Path) -> Sequence[str]:
    """The lines of a file; none if it is not there."""
    return path.read_text().splitlines() if path.exists() else []
