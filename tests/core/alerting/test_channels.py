"""Each channel sends the format that its receiver documents, to a real receiver."""

from __future__ import annotations

import json
import logging
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from probe.core.alerting.channels import CHANNELS
from probe.core.alerting.channels.exchange import NotReceived
from probe.core.alerting.channels.feishu import MessageRate
from probe.core.config.errors import ConfigError
from probe.core.config.load import load
from tests.core.alerting.receivers import Receiver, alert, alerts_to, serving, signed, text_of
from tests.quick_python import quick_python
from tests.required import require, require_program
from tests.user_scripts import COMMANDS
from tests.waiting import free_port, wait_for

require("httpx")
SECRET = "s3cr3t/of+the=bot"


def channel(name: str, **args: Any) -> Any:
    """The channel ``name`` with checked arguments."""
    (settings,) = load({"alert": {"channels": [{"channel": name, "args": args}]}}).alert.channels
    return CHANNELS[name](settings.args)


def test_feishu_gets_a_signed_post(tmp_path: Path) -> None:
    """Title, a paragraph for each alert, and the signature that the documentation describes."""
    (tmp_path / "secret").write_text(SECRET + "\n")
    with serving(Receiver()) as receiver:
        sender = channel("feishu", url=receiver.url(), secret_file=str(tmp_path / "secret"))
        sender.send([alert(job="pretraining"), alert("nan loss", "critical", "NaN\nat step 4")], 60)
    (request,) = receiver.requests
    assert request.body["msg_type"] == "post"
    assert signed(SECRET, request.body)
    assert not signed("another", request.body)
    title, *lines = text_of(request).split("\n")
    assert title == "pretraining: 2 alerts: [critical] Spike of nan loss"
    assert lines[:3] == ["[warning] Spike of spike loss", "loss 9 at step 3", "job pretraining"]
    assert lines[4:8] == ["", "[critical] Spike of nan loss", "NaN", "at step 4"]


def test_an_error_code_in_an_answer_of_status_200_is_a_failure() -> None:
    """With the code, its text and its cause; so is an answer that is no JSON object."""
    code = json.dumps({"code": 19021, "msg": "sign match fail"}).encode()
    with serving(Receiver((200, {}, code), (200, {}, b"<html>"), (200, {}, b'{"ok": true}'))) as receiver:
        sender = channel("feishu", url=receiver.url())
        with pytest.raises(NotReceived, match=r"code 19021: sign match fail \(secret_file or secret_variable"):
            sender.send([alert()], 60)
        with pytest.raises(NotReceived, match="expected a JSON object"):
            sender.send([alert()], 60)
        with pytest.raises(NotReceived, match="code None"):
            sender.send([alert()], 60)


def test_a_message_of_feishu_stays_below_20_kb() -> None:
    """Alerts that do not fit are counted; one that is too long is cut, also if each character takes three bytes."""
    with serving(Receiver()) as receiver:
        sender = channel("feishu", url=receiver.url())
        sender.send([alert(f"{number}", text="损失" * 400) for number in range(50)], 60)
        sender.send([alert(text="损\n\x00" * 3000)], 60)
    many, one = receiver.requests
    assert many.size <= 20_000
    assert one.size <= 20_000
    shown = text_of(many).count("[warning]") - 1  # the title has one
    assert 3 < shown < 50
    assert f"{50 - shown} alerts left out" in text_of(many)
    assert "characters left out" in text_of(one)


def test_messages_keep_the_limits_of_feishu() -> None:
    """The sixth message within a second waits; one that would wait for too long is refused with the time."""
    pace, start = MessageRate(((2, 0.2), (5, 60.0))), time.monotonic()
    for _ in range(5):
        pace.wait(1.0)
    assert 0.4 <= time.monotonic() - start < 20
    with pytest.raises(NotReceived) as refused:
        pace.wait(1.0)
    assert refused.value.retry_after is not None
    assert 30 < refused.value.retry_after <= 60


def test_http_gets_json_and_a_bearer_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Title, severity, and each alert with all its fields."""
    monkeypatch.setenv("TOKEN", SECRET)
    sent = alert(job="pretraining", step="3")
    with serving(Receiver()) as receiver:
        channel("http", url=receiver.url(), secret_variable="TOKEN").send([sent], 60)
    (request,) = receiver.requests
    assert request.headers["authorization"] == f"Bearer {SECRET}"
    fields = {**sent._asdict(), "labels": {"job": "pretraining", "step": "3"}}
    assert (fields.pop("repeated"), fields.pop("language")) == (False, "")  # of the sender, and of English, alone
    assert request.body == {
        "title": "pretraining: [warning] Spike of spike loss",
        "severity": "warning",
        "alerts": [fields],
    }


def test_alertmanager_holds_and_ends_an_alert(tmp_path: Path) -> None:
    """A real Alertmanager has the alert with its labels, and after the notice of its end no more."""
    program = require_program("prometheus-alertmanager")
    (tmp_path / "config.yml").write_text("route: {receiver: none}\nreceivers: [{name: none}]\n")
    url = f"http://127.0.0.1:{free_port()}"
    options = [
        f"--config.file={tmp_path}/config.yml",
        f"--storage.path={tmp_path}/data",
        f"--web.listen-address={url.removeprefix('http://')}",
        "--cluster.listen-address=",
    ]

    def held() -> list[Any]:
        with urllib.request.urlopen(f"{url}/api/v2/alerts", timeout=60) as answer:
            found: list[Any] = json.load(answer)
            return found

    with subprocess.Popen([program, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            sender = channel("alertmanager", url=url + "/")
            wait_for(lambda: _answers(sender))
            sent = alert("nan loss", "critical", job="pretraining", rank="3", step="7", **{"odd name": "x"})
            sender.send([sent], 60)
            wait_for(held)
            (found,) = held()
            assert found["labels"] == {
                "alertname": "probe_run", "job": "pretraining", "rank": "3", "key": "nan loss", "severity": "critical",
                "odd_name": "x",
            }  # fmt: skip
            assert found["annotations"] == {"title": "Spike of nan loss", "text": "loss 9 at step 3", "step": "7"}
            ended = sent._replace(resolved=True, time=time.time(), labels={**sent.labels, "step": "9"})
            sender.send([ended], 60)
            wait_for(lambda: not held())
        finally:
            process.kill()


def _answers(sender: Any) -> bool:
    try:
        sender.check(1)
    except NotReceived:
        return False
    return True


class Mailbox:
    """Mails that were received."""

    def __init__(self) -> None:
        self.mails: list[str] = []

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802 - aiosmtpd's name
        self.mails.append(envelope.content.decode())
        return "250 OK"


def test_apprise_sends_mail_and_repeats_only_what_failed(tmp_path: Path) -> None:
    """Two services: the one that has accepted the alerts gets no second mail when the other has failed."""
    require("apprise")
    smtp = require("aiosmtpd.smtp")
    box, right = Mailbox(), free_port()

    def known(server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> Any:
        return smtp.AuthResult(success=data.password == b"pa55word")

    controller = require("aiosmtpd.controller").Controller(
        box, "127.0.0.1", right, authenticator=known, auth_required=True, auth_require_tls=False
    )
    urls = tmp_path / "urls"
    parts = "?from=probe@example.com&to=ops@example.com&mode=insecure"
    urls.write_text(
        f"# mail\nmailto://me:pa55word@127.0.0.1:{right}/{parts}\njson://127.0.0.1:{free_port()}/abc12345\n"
    )
    controller.start()
    try:
        sender, sent = channel("apprise", url_file=str(urls)), alert(job="pretraining")
        for _ in range(2):
            with pytest.raises(NotReceived, match="service 2 of 2") as failed:
                sender.send([sent], 10)
            assert "abc12345" not in str(failed.value)
    finally:
        controller.stop()
    (mail,) = box.mails
    assert "Subject: pretraining: [warning] Spike of spike loss" in mail
    assert "loss 9 at step 3" in mail


def test_file_gets_whole_lines_and_console_a_level(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A line of JSON for each alert; severities as levels of logging."""
    path = tmp_path / "alerts.jsonl"
    sent = [alert(severity="info"), alert(severity="warning"), alert(severity="critical")]
    channel("file", path=str(path)).send(sent, 1)
    channel("file", path=str(path)).send(sent[:1], 1)
    assert [json.loads(line)["severity"] for line in path.read_text().splitlines()] == [
        *("info", "warning", "critical", "info")
    ]
    with caplog.at_level(logging.INFO, "probe"):
        channel("console").send([*sent, sent[2]._replace(resolved=True)], 1)
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "CRITICAL", "INFO"]


def test_a_full_disk_leaves_no_part_of_a_line(tmp_path: Path) -> None:
    """The file is as long as before, and the failure is one of the channel."""
    path = tmp_path / "alerts.jsonl"
    program = (
        "import resource, signal, sys\n"
        "from tests.core.alerting.test_channels import alert, channel\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"sender = channel('file', path={str(path)!r})\n"
        "sender.send([alert()], 1)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (400, 400))\n"
        "try: sender.send([alert(), alert()], 1)\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )

    done = subprocess.run([quick_python(*COMMANDS), "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("NotReceived")
    assert "File too large" in done.stdout
    assert len([json.loads(line) for line in path.read_text().splitlines()]) == 1


def test_wrong_arguments_are_named_with_their_paths() -> None:
    """All at once, and no address is shown."""
    hook = "htp://open.feishu.cn/open-apis/bot/v2/hook/0123456789abcdef"
    channels = [
        {"channel": "feishu", "args": {"url": hook}},
        {"channel": "http"},
        {"channel": "http", "args": {"url": "https://a/", "url_file": "b"}},
        {"channel": "alertmanager", "args": hook},
        {"channel": "http", "args": {"url": "https://a/", "secret_file": "a", "secret_variable": "B"}},
        {"channel": "slack"},
        {"channel": "apprise", "args": {"url": hook}},
    ]
    with pytest.raises(ConfigError) as error:
        load({"alert": {"channels": channels}})
    text = str(error.value)
    assert "alert.channels[0].args.url: expected an address that begins with http:// or https://" in text
    assert "alert.channels[1].args: expected exactly one of url, url_file, url_variable, got none" in text
    assert "alert.channels[2].args: expected exactly one of url, url_file, url_variable, got url, url_file" in text
    assert "alert.channels[3].args: expected a mapping, got str" in text
    assert "alert.channels[4].args: expected at most one of secret_file, secret_variable" in text
    assert "alert.channels[5].channel: expected one of feishu, apprise" in text
    assert "alert.channels[6].args.url: unknown key; expected one of url_file, url_variable" in text
    assert "0123456789abcdef" not in text


def test_addresses_that_cannot_be_used_are_an_error_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Missing files and variables, texts that are no address, folders that are not there: all listed."""
    monkeypatch.setenv("ODD", "no-address-0123456789")
    monkeypatch.delenv("MISSING", raising=False)
    (tmp_path / "empty").write_text("\n")
    channels: list[dict[str, Any]] = [
        {"channel": "feishu", "args": {"url_file": str(tmp_path / "none"), "secret_variable": "MISSING"}},
        {"channel": "http", "args": {"url_variable": "ODD"}},
        {"channel": "http", "args": {"url_file": str(tmp_path / "empty")}},
        {"channel": "alertmanager", "args": {"url": "http://a:9093", "ca_file": str(tmp_path / "empty")}},
        {"channel": "file", "args": {"path": str(tmp_path / "none" / "a")}},
        {"channel": "apprise", "args": {"url_variable": "ODD"}},
    ]
    with pytest.raises(ConfigError) as error:
        alerts_to(channels)
    keys = [line.partition(": ")[0].removeprefix("alert.channels") for line in error.value.problems]
    assert keys == [
        *("[0].args.url_file", "[0].args.secret_variable", "[1].args.url_variable", "[2].args.url_file"),
        *("[3].args.ca_file", "[4].args.path", "[5].args.url_variable"),
    ]
    assert "0123456789" not in str(error.value)
