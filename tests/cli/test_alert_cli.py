"""``probe alert``: channels are tested, and what a run could not send is sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from probe.cli import app
from tests.core.alerting.receivers import Choosy, Receiver, alert, alerts_to, black_hole, raw_server, serving, text_of
from tests.required import require
from tests.waiting import free_port

require("httpx")


def config(folder: Path, *channels: dict[str, Any]) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps({"alert": {"channels": channels}}))
    return str(path)


def probe(*arguments: str) -> tuple[int, str]:
    """Exit code and all output."""
    result = CliRunner().invoke(app, ["alert", *arguments])
    return result.exit_code, result.output


def test_a_test_alert_goes_to_each_channel(tmp_path: Path) -> None:
    """With a line for each; exit code 0 if all accepted it."""
    with serving(Receiver()) as receiver:
        path = config(
            tmp_path,
            {"channel": "feishu", "severity": "critical", "args": {"url": receiver.url()}},
            {"channel": "file", "args": {"path": str(tmp_path / "lines")}},
        )
        code, output = probe("test", path)
        assert (code, sorted(output.splitlines())) == (0, ["feishu[0]: accepted", "file[1]: accepted"])
        assert "Test alert" in text_of(receiver.requests[0])
    assert json.loads((tmp_path / "lines").read_text())["kind"] == "test"


def test_a_channel_that_fails_is_exit_code_1(tmp_path: Path) -> None:
    """With the reason, and without the address."""
    with serving(Receiver((200, {}, b'{"code": 19024, "msg": "Key Words Not Found"}'))) as receiver:
        hook = f"http://127.0.0.1:{free_port()}/0123456789abcdef"
        channels = [{"channel": "feishu", "args": {"url": receiver.url()}}, {"channel": "http", "args": {"url": hook}}]
        code, output = probe("test", config(tmp_path, *channels))
    assert code == 1
    assert "feishu[0]: failed: NotReceived: code 19024: Key Words Not Found (the bot requires a keyword" in output
    assert "http[1]: failed: NotReceived: ConnectError" in output
    assert "0123456789abcdef" not in output


@pytest.mark.parametrize(
    ("channels", "message"),
    [
        (
            [{"channel": "feishu", "args": {"url_file": "/no/such/file"}}],
            "alert.channels[0].args.url_file: expected a file",
        ),
        (
            [{"channel": "http", "args": {"url": "ftp://0123456789abcdef"}}],
            "alert.channels[0].args.url: expected an address",
        ),
        ([], "expected alert.channels, got none"),
    ],
)
def test_a_wrong_configuration_is_exit_code_2(channels: list[Any], message: str, tmp_path: Path) -> None:
    """Nothing is sent."""
    code, output = probe("test", config(tmp_path, *channels))
    assert code == 2
    assert message in output
    assert "0123456789abcdef" not in output


def test_flush_sends_what_a_run_could_not(tmp_path: Path) -> None:
    """To the channels that have not accepted it; without --config only if no address stood in the configuration."""
    with raw_server(black_hole) as dead, serving(Receiver()) as receiver:
        (tmp_path / "url").write_text(dead)
        of_the_run = [{"channel": "feishu", "args": {"url_file": str(tmp_path / "url")}}]
        alerts, _ = alerts_to(of_the_run, tmp_path)
        alerts.send(alert("a"))
        assert not alerts.close(0.2)
        code, output = probe("flush", str(tmp_path), "--config", config(tmp_path, {"channel": "http"}))
        assert code == 2
        (tmp_path / "url").write_text(receiver.url())
        code, output = probe("flush", str(tmp_path))
        assert (code, output) == (0, "1 alert to send\nfeishu[0]: accepted\n")
        assert "Spike of a" in text_of(receiver.requests[0])
        assert probe("flush", str(tmp_path)) == (0, f"{tmp_path}/alerts: no alert waits to be sent\n")
        inline, _ = alerts_to([{"channel": "feishu", "args": {"url": dead}}], tmp_path)
        inline.send(alert("b"))
        assert not inline.close(0.2)
        code, output = probe("flush", str(tmp_path / "alerts"))
        assert code == 2
        assert "the address of feishu: not in the directory; give the run's configuration with --config" in output
        code, output = probe("flush", str(tmp_path), "--config", config(tmp_path, *of_the_run))
        assert (code, len(receiver.requests)) == (0, 2)


def test_flush_sends_the_others_of_one_that_is_refused(tmp_path: Path) -> None:
    """The refused one alone stays."""
    with raw_server(black_hole) as dead, serving(Choosy((400, {}, b"no"))) as receiver:
        (tmp_path / "url").write_text(dead)
        alerts, _ = alerts_to([{"channel": "http", "args": {"url_file": str(tmp_path / "url")}}], tmp_path)
        for key in ("a", "b", "poison", "c", "d"):
            alerts.send(alert(key))
        assert not alerts.close(0.2)
        (tmp_path / "url").write_text(receiver.url())
        code, output = probe("flush", str(tmp_path))
        assert (code, output.count("accepted")) == (1, 2)
        assert isinstance(receiver, Choosy)
        assert all(receiver.has(key) for key in "abcd")
        (left,) = (tmp_path / "alerts").glob("*.json")
        assert "poison" in left.read_text()


def test_flush_keeps_what_it_cannot_send(tmp_path: Path) -> None:
    """Exit code 1, and the next one finds it; a directory that is not there is exit code 2."""
    channel = {"channel": "http", "args": {"url": f"http://127.0.0.1:{free_port()}/0123456789abcdef"}}
    alerts, _ = alerts_to([channel], tmp_path)
    alerts.send(alert("a"))
    assert not alerts.close(0.2)
    for _ in range(2):
        code, output = probe("flush", str(tmp_path), "--config", config(tmp_path, channel))
        assert code == 1
        assert "1 alert to send\nhttp[0]: failed: NotReceived: ConnectError" in output
        assert "0123456789abcdef" not in output
    assert probe("flush", str(tmp_path / "none"))[0] == 2


def test_alerts_of_a_run_that_goes_on_are_left_to_it(tmp_path: Path) -> None:
    """Its alerts stay where they are."""
    with raw_server(black_hole) as dead, serving(Receiver()) as receiver:
        alerts, _ = alerts_to([{"channel": "http", "args": {"url": dead}}], tmp_path)
        alerts.send(alert("a"))
        assert not alerts.flush(0.2)
        path = config(tmp_path, {"channel": "http", "args": {"url": receiver.url()}})
        code, output = probe("flush", str(tmp_path), "--config", path)
        assert (code, receiver.requests) == (0, [])
        assert "1 sender in" in output
        assert len(list((tmp_path / "alerts").glob("*.json"))) == 1
        alerts.close(0.1)


def test_flush_of_a_folder_without_alerts_says_so(tmp_path: Path) -> None:
    """One line, exit code 0."""
    assert probe("flush", str(tmp_path)) == (0, f"{tmp_path}/alerts: no alert waits to be sent\n")
