"""Routes, messages and inhibition: the shipped configuration in amtool and in a real Alertmanager."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.required import require, require_program
from tests.resources.monitoring_process import ALERTMANAGER, Receiver, Server, alertmanager
from tests.waiting import free_port, wait_for

FILE = ALERTMANAGER / "alertmanager.yml"
CONFIGURATION: dict[str, Any] = yaml.safe_load(FILE.read_text("utf-8"))
SECRETS = {"smtp_password": "mail-secret", "pagerduty_key": "duty-secret", "remediation_token": "action-secret"}
SECRETS |= {"dead_man_token": "dead-man-secret"}

ROUTES = {
    "alertname=Watchdog severity=info component=monitor": "dead-man",
    "severity=critical component=gpu": "remediation,critical,gpu-team",
    "severity=critical component=training": "remediation,critical,training-team",
    "severity=critical component=system": "remediation,critical,default",
    "severity=critical component=monitor": "remediation,critical,default",
    "severity=critical alertname=probe_hang": "remediation,critical,training-team",
    "severity=warning component=gpu": "remediation,gpu-team",
    "severity=warning component=training": "remediation,training-team",
    "severity=warning component=system": "remediation,default",
    "severity=warning component=monitor": "remediation,default",
    "severity=warning alertname=probe_finding": "remediation,training-team",
    "severity=info component=gpu": "gpu-team",
    "severity=info component=training": "training-team",
    "severity=info component=monitor": "default",
    "alertname=Unknown": "default",
}


def routes(route: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A route and all below it."""
    yield route
    for each in route.get("routes", ()):
        yield from routes(each)


def test_configuration_is_accepted() -> None:
    """amtool accepts the file and its templates as they are shipped."""
    command = [require_program("amtool"), "check-config", str(FILE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "1 templates" in done.stdout


@pytest.mark.parametrize(("labels", "receivers"), ROUTES.items())
def test_alerts_reach_their_receivers(labels: str, receivers: str) -> None:
    """Critical ones reach all at once, others their team, and what nobody expects the default."""
    command = [require_program("amtool"), "config", "routes", "test", f"--config.file={FILE}"]
    done = subprocess.run([*command, *labels.split()], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == receivers


def test_every_receiver_and_route_is_used() -> None:
    """Each receiver has a route in the table above, and each route is one of the receivers that there are."""
    names = {each["name"] for each in CONFIGURATION["receivers"]}
    assert names == {name for receivers in ROUTES.values() for name in receivers.split(",")}
    assert {each["receiver"] for each in routes(CONFIGURATION["route"]) if "receiver" in each} == names


def test_critical_alerts_are_sent_at_once_and_again_after_five_minutes() -> None:
    """By the shipped times; each receiver sends notices of the end, but for the one that expects none."""
    critical = [each for each in CONFIGURATION["route"]["routes"] if each["receiver"] in ("critical", "remediation")]
    assert [(each["group_wait"], each["group_interval"], each["repeat_interval"]) for each in critical] == [
        ("0s", "3s", "5m")
    ] * 2
    for receiver in CONFIGURATION["receivers"]:
        ways = [way for kind, found in receiver.items() if kind != "name" for way in found]
        assert {way["send_resolved"] for way in ways} == {receiver["name"] != "dead-man"}, receiver["name"]
    kinds = {kind for receiver in CONFIGURATION["receivers"] for kind in receiver} - {"name"}
    assert kinds == {"email_configs", "slack_configs", "pagerduty_configs", "webhook_configs"}


def test_secrets_stand_in_files_only() -> None:
    """No key takes a secret itself, and every file lies in the folder of secrets."""
    text = FILE.read_text("utf-8")
    named = re.findall(r"(\w+): (/\S+)", text)
    assert {key for key, _ in named} == {
        *("smtp_auth_password_file", "slack_api_url_file", "routing_key_file", "credentials_file")
    }
    assert {str(Path(path).parent) for _, path in named} == {"/etc/alertmanager/secrets"}
    assert not re.search(r"\b(password|api_url|routing_key|service_key|credentials|bearer_token): ", text)


class Station(NamedTuple):
    """Alertmanager with receivers on loopback."""

    server: Server
    receiver: Receiver
    letters: list[str]

    def send(self, *labels: dict[str, str], resolved: bool = False, **annotations: str) -> None:
        """Send alerts as Prometheus does."""
        now = datetime.now(timezone.utc)
        ends = now - timedelta(seconds=1) if resolved else now + timedelta(minutes=5)
        times = {"startsAt": (now - timedelta(minutes=2)).isoformat(), "endsAt": ends.isoformat()}
        alerts = [{"labels": each, "annotations": annotations, **times} for each in labels]
        status, answer = self.server.request("POST", "/api/v2/alerts", alerts)
        assert status == 200, answer

    def webhooks(self, name: str, status: str = "firing") -> list[Any]:
        """What the webhook of remediation has got about an alert."""
        found = [each for each in self.receiver.at("/webhook") if each.body["status"] == status]
        return [each for each in found if each.body["commonLabels"].get("alertname") == name]


@pytest.fixture(scope="module")
def station(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Station]:
    """The shipped configuration with addresses of this machine; repetitions come after a second instead of minutes."""
    folder = tmp_path_factory.mktemp("alertmanager")
    letters: list[str] = []
    with ExitStack() as stack:
        receiver = stack.enter_context(Receiver())
        mail = stack.enter_context(_mail(letters))
        for name, secret in {**SECRETS, "slack_url": f"{receiver.address}/slack"}.items():
            (folder / name).write_text(secret)
        (folder / "probe.tmpl").write_text((ALERTMANAGER / "probe.tmpl").read_text("utf-8"))
        text = FILE.read_text("utf-8").replace("/etc/alertmanager/secrets", str(folder))
        for old, new in (
            ("smtp.example.org:587", mail),
            ("smtp_require_tls: true", f"smtp_require_tls: false\n  pagerduty_url: {receiver.address}/pagerduty"),
            ("http://localhost:9095", receiver.address),
            ("https://dead-man.example.org", receiver.address),
            ("repeat_interval: 5m", "repeat_interval: 1s"),
            ("group_interval: 3s", "group_interval: 1s"),
        ):
            assert old in text
            text = text.replace(old, new)
        (folder / "alertmanager.yml").write_text(text)
        yield Station(stack.enter_context(alertmanager(folder / "alertmanager.yml", folder)), receiver, letters)


@contextmanager
def _mail(letters: list[str]) -> Iterator[str]:
    """The address of a mail server that admits the password of the secret's file alone."""
    controller, smtp = require("aiosmtpd.controller"), require("aiosmtpd.smtp")

    class Box:
        async def handle_DATA(self, server: object, session: object, envelope: Any) -> str:  # noqa: N802 - aiosmtpd calls it
            letters.append(envelope.content.decode())
            return "250 OK"

    def known(server: object, session: object, envelope: object, mechanism: object, login: Any) -> Any:
        return smtp.AuthResult(success=login.password == SECRETS["smtp_password"].encode())

    port = free_port()
    box = controller.Controller(
        Box(),
        "127.0.0.1",
        port,
        authenticator=known,
        auth_require_tls=False,
        auth_required=True,
        auth_exclude_mechanism=["LOGIN"],  # Alertmanager does not know how aiosmtpd words its questions
    )
    box.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        box.stop()


LOSS = {"alertname": "TrainingLossNaN", "severity": "critical", "component": "training", "job": "pretrain"}
LOSS |= {"cluster": "c1"}
TEXTS = {
    "summary": "The loss is no number",
    "description": "8 ranks have NaN.",
    "action": "Stop it.",
    "guide": "docs/x.md",
}


def test_critical_alert_reaches_every_receiver_and_is_repeated(station: Station) -> None:
    """Webhook with its token, Slack, PagerDuty and two letters; it comes again, and at the end a notice comes."""
    station.send(LOSS, **TEXTS)
    first = wait_for(lambda: station.webhooks("TrainingLossNaN"))[0]
    assert first.token == "Bearer action-secret"
    (alert,) = first.body["alerts"]
    assert (alert["status"], alert["labels"], alert["annotations"]) == ("firing", LOSS, TEXTS)
    slack = wait_for(lambda: station.receiver.at("/slack"))[0].body["attachments"][0]
    assert slack["title"] == "[FIRING 1] CRITICAL TrainingLossNaN pretrain (c1)"
    assert slack["text"].startswith(
        "The loss is no number\n8 ranks have NaN.\nTo do: Stop it.\nSee: docs/x.md\nSince 2"
    )
    duty = wait_for(lambda: station.receiver.at("/pagerduty"))[0].body
    assert (duty["routing_key"], duty["event_action"], duty["payload"]["severity"]) == (
        *("duty-secret", "trigger", "critical"),
    )
    wait_for(lambda: len(station.letters) >= 1)
    letter = station.letters[0]
    assert "Subject: [FIRING 1] CRITICAL TrainingLossNaN pretrain (c1)" in letter
    assert "To do: Stop it." in letter
    again = wait_for(lambda: station.webhooks("TrainingLossNaN")[1:])[0]
    assert again.body["alerts"][0]["fingerprint"] == alert["fingerprint"]
    station.send(LOSS, resolved=True, **TEXTS)
    over = wait_for(lambda: station.webhooks("TrainingLossNaN", "resolved"))[0]
    assert [each["status"] for each in over.body["alerts"]] == ["resolved"]
    wait_for(lambda: [each for each in station.receiver.at("/pagerduty") if each.body["event_action"] == "resolve"])


def test_alert_that_always_fires_reaches_the_dead_mans_address(station: Station) -> None:
    """With its token, and nobody else."""
    station.send({"alertname": "Watchdog", "severity": "info", "component": "monitor"}, summary="Alerts work")
    (found, *_) = wait_for(lambda: station.receiver.at("/alerts"))
    assert found.token == "Bearer dead-man-secret"
    assert station.webhooks("Watchdog") == []


def test_alert_of_a_run_itself_is_readable(station: Station) -> None:
    """Such an alert has a title and a text in place of a summary and a description."""
    labels = {"alertname": "probe_hang", "severity": "critical", "job": "b", "key": "hang rank 3"}
    station.send(labels, title="b stands still", text="Rank 3 is in data.")
    texts = wait_for(lambda: [text for text in _slack_texts(station) if text.startswith("b stands still")])
    assert texts[0].splitlines()[1] == "Rank 3 is in data."


def _slack_texts(station: Station) -> list[str]:
    return [each.body["attachments"][0]["text"] for each in station.receiver.at("/slack")]


INHIBITION = [
    ({"alertname": "NodeDown", "node": "n1"}, {"alertname": "DiskSpaceLow", "node": "n1"}, True),
    ({"alertname": "NodeDown", "node": "n1"}, {"alertname": "DiskSpaceLow", "node": "n2"}, False),
    ({"alertname": "NodeDown", "node": "n1"}, {"alertname": "TrainingLossSpike", "job": "a"}, False),
    ({"alertname": "NodeDown", "node": "n1"}, {"alertname": "NodeDown", "node": "n1", "severity": "critical"}, False),
    ({"alertname": "NodeDown"}, {"alertname": "TrainingStalled", "job": "other"}, False),
    (
        {"alertname": "GPUTemperatureHigh", "node": "n3", "gpu_id": "0"},
        {"alertname": "GPUUtilizationLow", "node": "n3", "gpu_id": "0"},
        True,
    ),
    (
        {"alertname": "GPUTemperatureHigh", "node": "n3", "gpu_id": "0"},
        {"alertname": "GPUUtilizationLow", "node": "n4", "gpu_id": "0"},
        False,
    ),
    (
        {"alertname": "GPUTemperatureHigh", "node": "n3", "gpu_id": "0"},
        {"alertname": "GPUUtilizationLow", "node": "n3", "gpu_id": "1"},
        False,
    ),
    (
        {"alertname": "GPUTemperatureHigh", "gpu_id": "0"},
        {"alertname": "GPUUtilizationLow", "gpu_id": "0"},
        False,
    ),
    ({"alertname": "TrainingLossNaN", "job": "c"}, {"alertname": "TrainingLossSpike", "job": "c"}, True),
    ({"alertname": "TrainingLossNaN", "job": "c"}, {"alertname": "TrainingLossSpike", "job": "d"}, False),
    ({"alertname": "BusyGPUWithoutSteps", "job": "e"}, {"alertname": "TrainingStalled", "job": "e"}, True),
    ({"alertname": "RankDown", "job": "f"}, {"alertname": "RankMissing", "job": "f"}, True),
]


@pytest.mark.parametrize(("source", "target", "silenced"), INHIBITION)
def test_inhibition_is_by_node_and_by_gpu(
    station: Station, source: dict[str, str], target: dict[str, str], silenced: bool, request: pytest.FixtureRequest
) -> None:
    """A node that is down silences its own alerts alone; a hot GPU its own low utilization, on no other node."""
    cluster = {"cluster": request.node.name, "severity": "warning"}
    other = {"cluster": f"other {request.node.name}", "severity": "warning", "node": "n1"}
    station.send({**cluster, **source}, {**cluster, **target})
    station.send({**other, "alertname": "NodeDown"}, {**other, "alertname": "DiskSpaceLow"})
    wait_for(lambda: _status(station, {**other, "alertname": "DiskSpaceLow"})["inhibitedBy"])  # and all before it
    if silenced:
        wait_for(lambda: _status(station, {**cluster, **target})["inhibitedBy"])
    status = _status(station, {**cluster, **target})
    assert bool(status["inhibitedBy"]) is silenced
    assert status["state"] == ("suppressed" if silenced else status["state"])


def _status(station: Station, labels: dict[str, str]) -> Any:
    found = station.server.get("/api/v2/alerts")
    (status,) = [each["status"] for each in found if each["labels"] == labels]
    return status
