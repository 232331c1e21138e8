"""One bad alert stands in nobody's way, and what lasts is sent again while it does."""

from __future__ import annotations

import json
import re
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from probe.core.alerting import dispatcher, outlet
from probe.core.alerting.channels import alertmanager, feishu
from probe.core.messages import shortened
from probe.core.records import Alert
from probe.core.times import utc_text
from tests.core.alerting.receivers import ACCEPTED, Answer, Choosy, Receiver, alert, alerts_to, serving, text_of
from tests.required import require
from tests.waiting import wait_for

require("httpx")
GIVEN_UP = "alerts: refused by the receiver for good"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages and attempts that follow each other soon."""
    monkeypatch.setattr(dispatcher, "SPACING", 0.02)
    monkeypatch.setattr(feishu, "RATES", ((100, 1.0),))
    monkeypatch.setattr(outlet, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(outlet, "LONGEST_PAUSE", 0.1)


REFUSALS: list[tuple[str, Answer]] = [
    ("http", (400, {}, b"no")),
    ("http", (500, {}, b"crash")),
    ("alertmanager", (422, {}, b"")),
    ("feishu", (200, {}, b'{"code": 19002, "msg": "params error"}')),
    ("feishu", (200, {}, b'{"code": 9499, "msg": "Bad Request"}')),
]


@pytest.mark.parametrize(("channel", "refusal"), REFUSALS, ids=[f"{name}-{answer[0]}" for name, answer in REFUSALS])
def test_an_alert_that_is_refused_alone_is_isolated(channel: str, refusal: Answer, tmp_path: Path) -> None:
    """Whether it is refused for good or, as its receiver has it, only now: those before, beside and after it arrive; it
    is counted, logged, and given up."""
    with serving(Choosy(refusal)) as receiver:
        assert isinstance(receiver, Choosy)
        alerts, faults = alerts_to([{"channel": channel, "args": {"url": receiver.url()}}], tmp_path)
        alerts.send(alert("first"))
        wait_for(lambda: receiver.has("first"))
        for key in ("beside one", "poison", "beside another"):
            alerts.send(alert(key))
        wait_for(lambda: receiver.has("beside one") and receiver.has("beside another"))
        for number in range(20):
            alerts.send(alert(f"later {number}"))
        wait_for(lambda: receiver.has("later 19"))
        assert alerts.close(60)
        assert faults.counts[GIVEN_UP] == 1
        assert [*(tmp_path / "alerts").glob("*.json")] == []


def test_of_a_receiver_that_accepts_nothing_no_alert_is_given_up(tmp_path: Path) -> None:
    """A wrong address may answer like that: all alerts wait on the disk, and arrive in one message when it is right."""
    with serving(Receiver(*[(400, {}, b"no such path")] * 30, ACCEPTED)) as receiver:
        alerts, faults = alerts_to([{"channel": "http", "args": {"url": receiver.url()}}], tmp_path)
        for key in "abc":
            alerts.send(alert(key))
        wait_for(lambda: len(receiver.requests) > 30)
        assert alerts.close(60)
        titles = [entry["title"] for request in receiver.requests[30:] for entry in request.body["alerts"]]
        assert sorted(titles) == ["Spike of a", "Spike of b", "Spike of c"]
        assert GIVEN_UP not in faults.counts


@pytest.mark.parametrize("time_", [1.7e12, 1e300, float("nan"), float("inf"), -1.0, True, "noon", None])
def test_a_time_that_is_none_becomes_the_present_one(time_: Any, tmp_path: Path) -> None:
    """In milliseconds, not finite, or no number: the alert arrives in every channel, and those after it."""
    lines = tmp_path / "lines"
    with serving(Receiver()) as receiver:
        channels: list[dict[str, Any]] = [
            {"channel": name, "args": {"url": receiver.url()}} for name in ("feishu", "alertmanager", "http")
        ]
        alerts, faults = alerts_to([*channels, {"channel": "file", "args": {"path": str(lines)}}])
        alerts.send(alert("odd")._replace(time=time_))
        alerts.send(alert("next"))
        assert alerts.close(60)
        assert len(receiver.requests) == 3
        times = [json.loads(line)["time"] for line in lines.read_text().splitlines()]
        assert [abs(sent - time.time()) < 300 for sent in times] == [True, True]
        assert faults.counts == {}


def test_values_of_any_kind_are_made_texts() -> None:
    """Labels that are numbers, lone surrogates, an object whose text raises."""

    class Nameless:
        def __str__(self) -> str:
            raise ValueError("no text")

    odd = Alert("k\udcff", "run", "warning", "t\ud800", "x", {"step": 3, "\udcff": Nameless()}, 0.0)  # type: ignore[dict-item]
    with serving(Receiver()) as receiver:
        alerts, faults = alerts_to([{"channel": "http", "args": {"url": receiver.url()}}])
        alerts.send(odd)
        assert alerts.close(60)
        (sent,) = receiver.requests[0].body["alerts"]
        assert (sent["key"], sent["title"]) == ("k\\udcff", "t\\ud800")
        assert sent["labels"].items() >= {"step": "3", "\\udcff": "<Nameless>"}.items()
        assert faults.counts == {}


def test_a_spooled_alert_with_an_odd_time_holds_up_no_later_run(tmp_path: Path) -> None:
    """Of an earlier version, which did not check it."""
    folder = tmp_path / "alerts"
    folder.mkdir()
    fields = {**alert("odd")._asdict(), "time": 58871e9}
    (folder / f"{'0' * 32}-1.json").write_text(json.dumps({"alert": fields, "pending": ["feishu[0]"]}))
    with serving(Receiver()) as receiver:
        alerts, _ = alerts_to([{"channel": "feishu", "args": {"url": receiver.url()}}], tmp_path)
        alerts.start()
        alerts.send(alert("next"))
        wait_for(lambda: receiver.requests)
        assert alerts.close(60)
        text = "".join(map(text_of, receiver.requests))
        assert "Spike of odd" in text
        assert "Spike of next" in text


def seconds(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def posts(receiver: Receiver, key: str) -> list[dict[str, Any]]:
    """What Alertmanager got about a matter."""
    return [
        entry
        for request in receiver.requests
        if request.path.startswith("/api")
        for entry in request.body
        if entry["labels"]["key"] == key
    ]


def test_a_lasting_matter_is_sent_again_to_alertmanager_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same beginning and labels and a later end each time; the chat gets it once, and both its end; then no
    more. An event ends after an hour, and one that arrives late an hour after that."""
    monkeypatch.setattr(alertmanager, "RENEWAL_SECONDS", 0.1)
    with serving(Receiver()) as receiver:
        address = receiver.url("/")
        alerts, _ = alerts_to([{"channel": "alertmanager", "args": {"url": address}},
                               {"channel": "feishu", "args": {"url": address + "chat"}}])  # fmt: skip
        began = time.time() - 7200
        alerts.send(alert("hang")._replace(lasting=True, time=began))
        alerts.send(alert("event")._replace(time=began))
        wait_for(lambda: len(posts(receiver, "hang")) > 3)
        alerts.resolve("hang", "goes on")
        assert alerts.flush(60)
        number = len(posts(receiver, "hang"))
        alerts.send(alert("last"))
        assert alerts.close(60)
        *firing, ended = posts(receiver, "hang")
        assert len(firing) + 1 == number
        assert {entry["startsAt"] for entry in firing} == {utc_text(began)}
        assert {json.dumps(entry["labels"]) for entry in firing} == {json.dumps(ended["labels"])}
        ends = [seconds(entry["endsAt"]) for entry in firing]
        assert ends == sorted(set(ends))
        assert ends[0] > time.time() + 600
        assert seconds(ended["endsAt"]) <= time.time()
        (event,) = posts(receiver, "event")
        assert abs(seconds(event["endsAt"]) - time.time() - 3600) < 600
        chat = "\n".join(text_of(request) for request in receiver.requests if request.path == "/chat")
        headings = re.findall(r"^(?!.*\d alerts: ).*\[(\w+)\] Spike of hang", chat, re.MULTILINE)
        assert sorted(headings) == ["resolved", "warning"]


def test_a_matter_of_an_earlier_process_is_taken_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is sent again to Alertmanager alone, and its end to all."""
    monkeypatch.setattr(alertmanager, "RENEWAL_SECONDS", 0.1)
    with serving(Receiver()) as receiver:
        address = receiver.url("/")
        channels: list[dict[str, Any]] = [
            {"channel": "alertmanager", "args": {"url": address}},
            {"channel": "feishu", "args": {"url": address + "chat"}},
        ]
        hang = alert("hang")._replace(lasting=True)
        first, _ = alerts_to(channels, tmp_path, run="run")
        first.send(hang)
        assert first.close(60)
        second, _ = alerts_to(channels, tmp_path, run="run")
        second.send(hang._replace(repeated=True))
        wait_for(lambda: len(posts(receiver, "hang")) > 3)
        second.resolve("hang", "goes on")
        assert second.close(60)
        chat = [text_of(request) for request in receiver.requests if request.path == "/chat"]
        assert len(chat) == 2
        assert "goes on" in chat[1]
        assert posts(receiver, "hang")[-1].get("startsAt") is None


def test_a_long_text_keeps_its_end() -> None:
    """The message of an exception is the last line of its traceback, also in the message to a chat."""
    trace = "Traceback\n" + '  File "model.py", line 3, in forward\n' * 1000 + "RuntimeError: device-side assert"
    with serving(Receiver()) as receiver:
        alerts, _ = alerts_to([{"channel": "feishu", "args": {"url": receiver.url()}}])
        alerts.send(alert("error", text=trace))
        assert alerts.close(60)
        assert "RuntimeError: device-side assert" in text_of(receiver.requests[0])
    short = shortened("a" * 50 + "b" * 50, 60)
    assert short == "a" * 20 + "\n... (40 characters left out) ...\n" + "b" * 40
