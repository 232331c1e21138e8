"""Ranks that fall silent by their own promise: judged by the server's clock, alerted once, resolved."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from probe.core.alerting.alerts import Alerts
from probe.core.alerting.channels.message import details, subject
from probe.core.config.load import load
from probe.core.faults import Faults
from probe.core.records import Alert
from probe.core.run_state.heartbeat_messages import HeartbeatBatch, HeartbeatMessage, Origin
from probe.core.run_state.rules import RunFinding, RunStep
from probe.services.server.board import MOST_RANKS, RunBoard
from probe.services.server.judge import RunJudge, ranges
from tests.required import require
from tests.services.server_process import batch, serving
from tests.waiting import wait_for

require("starlette")
require("uvicorn")

GRACE = 2.0
INFINITE = float("inf")


class Sent:
    """Alerts and notices, in their order."""

    def __init__(self) -> None:
        self.alerts: list[Alert] = []
        self.resolved: list[str] = []

    def send(self, alert: Alert) -> None:
        self.alerts.append(alert)

    def resolve(self, key: str, text: str) -> None:
        self.resolved.append(key)

    def close(self, seconds: float) -> None:
        """Nothing waits."""


class LossAboveTen:
    """Rule with a memory of its own."""

    def __init__(self) -> None:
        self.above = False

    def judge(self, step: RunStep) -> Iterator[RunFinding]:
        if (step.values["loss"] > 10) != self.above:
            self.above = not self.above
            yield RunFinding("Above", "loss", step.step, step.values["loss"], 10, "loss", "warning", not self.above)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to load."""


class Judged:
    """A board with its judge, whose clock the test sets."""

    def __init__(self, open_before: Mapping[str, Alert | None] = {}) -> None:
        self.sent, self.remembered = Sent(), dict[str, Alert | None]()
        self.board = RunBoard(keep_seconds=86_400)
        self.judge = RunJudge(self.board, self.sent, Faults(), self.remembered.__setitem__, [LossAboveTen], GRACE)
        self.judge.restore(open_before)
        self.now, self.number = 1000.0, 0

    def message(self, rank: int, promise: float | None, run: str = "", late: bool = False, **values: Any) -> None:
        kind, number = values.pop("kind", "progress"), values.pop("number", self.number)
        sent = HeartbeatMessage(number, kind, 0.0, promise, values)
        self.number = max(self.number, number + 1)
        whole = HeartbeatBatch(Origin("job", rank, 4, run or f"run {rank}", "launch"), (sent,), late)
        view = self.board.admit(whole.origin, self.now, late)
        assert view is not None
        self.board.receive(view, whole, self.now)
        self.judge.judge(view, whole.messages, late)

    def pass_time(self, seconds: float, tick: float = 0.5) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + tick, end)
            self.judge.tick(self.now)

    @property
    def titles(self) -> list[str]:
        return [alert.title for alert in self.sent.alerts]


def test_alerts_are_in_the_language_of_the_configuration(tmp_path: Path) -> None:
    """Title, text and labels about what a rank has sent; the job stands in the first line once."""
    path = tmp_path / "alerts.txt"
    channel = {"channel": "file", "severity": "info", "args": {"path": str(path)}}
    settings = load({"alert": {"language": "zh_cn", "group_seconds": 0, "channels": [channel]}}).alert
    judged, alerts = Judged(), Alerts(settings, job="serve", rank=0, directory=None, faults=Faults())
    judged.judge = RunJudge(judged.board, alerts, Faults(), judged.remembered.__setitem__)
    judged.message(3, 60, kind="finding", rule="RunNan", name="loss", step=9)
    alerts.close(10)
    sent = Alert(**json.loads(path.read_text("utf-8")))
    assert sent.text == "规则：RunNan\n名称：loss\n步：9"
    assert subject([sent]) == "[严重] job：异常项 RunNan loss"
    assert "，启动 launch，步 9\n" in details(sent)


def test_a_rank_is_silent_when_its_promise_has_passed() -> None:
    """Not before it, and not by the promise of another; one alert, however long it lasts; a notice when it is back."""
    judged = Judged()
    judged.message(0, 60, phase="train", step=7)
    judged.message(1, 600)
    judged.pass_time(60 + GRACE)
    assert judged.titles == []
    judged.pass_time(1)
    judged.pass_time(300)
    (alert,) = judged.sent.alerts
    assert (alert.title, alert.kind, alert.severity) == ("job: 1 rank silent", "hang", "critical")
    assert "rank 0: last message 62 s ago, the next promised within 60 s, in phase train, at step 7" in alert.text
    judged.message(0, 60)
    judged.pass_time(1)
    assert judged.sent.resolved == [alert.key]
    judged.message(1, 600)
    judged.pass_time(80)
    assert judged.titles == ["job: 1 rank silent"] * 2


def test_each_message_says_until_when() -> None:
    """A message without a promise renews the one before; an infinite one ends it; without any nobody is judged."""
    judged = Judged()
    judged.message(0, 10)
    judged.message(1, None)
    for _ in range(5):
        judged.pass_time(9)
        judged.message(0, None)
    judged.message(0, INFINITE)
    judged.pass_time(10_000)
    assert judged.titles == []


def test_a_thousand_silent_ranks_are_two_alerts() -> None:
    """One for the first of them, one when all are silent; both end with the last that comes back."""
    judged = Judged()
    for rank in range(1000):
        judged.message(rank, 10 if rank < 990 else 20)
    judged.pass_time(100)
    assert judged.titles == ["job: 990 ranks silent", "job: all ranks silent"]
    assert "silent: ranks 0-989" in judged.sent.alerts[0].text
    for rank in range(1000):
        assert judged.sent.resolved == []
        judged.message(rank, 10)
        judged.judge.tick(judged.now)
    assert len(judged.sent.resolved) == 2


def test_a_part_of_a_silent_job_that_returns_is_no_new_alert() -> None:
    """All ranks fell silent at once; that some still are is known."""
    judged = Judged()
    for rank in range(3):
        judged.message(rank, 10)
    judged.pass_time(20)
    judged.message(0, 1000)
    judged.pass_time(20)
    assert judged.titles == ["job: all ranks silent"]
    assert judged.sent.resolved == []


def test_silence_lasts_until_it_ends_or_the_job_is_forgotten() -> None:
    """Receivers that forget get it again; of a job that is forgotten nobody could end it later."""
    judged = Judged()
    judged.message(0, 10)
    judged.pass_time(20)
    (alert,) = judged.sent.alerts
    assert alert.lasting
    judged.board.sweep(judged.now + 2 * 86_400)
    judged.pass_time(1)
    assert judged.sent.resolved == [alert.key]
    assert judged.remembered == {alert.key: None}


@pytest.mark.parametrize("state", ["ended", "replaced"])
def test_a_message_that_is_known_revives_no_rank(state: str) -> None:
    """It is sent again where its answer was lost; a newer one than all before is a sign of life."""
    judged = Judged()
    judged.message(0, 10, run="first", number=5)
    if state == "ended":
        judged.message(0, INFINITE, run="first", number=6, state="ended")
    else:
        judged.message(0, 1e6, run="second", number=6)
    judged.message(0, 10, run="first", number=5)
    judged.pass_time(60)
    assert judged.titles == []
    judged.message(0, 10, run="first", number=7)
    judged.pass_time(60)
    assert len(judged.titles) == 1


def test_a_rank_that_has_ended_is_not_silent() -> None:
    """Its last message says so; messages of an ended process that come later change nothing."""
    judged = Judged()
    judged.message(0, 10)
    judged.message(0, INFINITE, state="ended")
    judged.message(1, 10, run="before", late=True)
    judged.message(1, 30)
    judged.message(1, 10, run="before", late=True, loss=100.0, kind="train_metrics")
    judged.pass_time(25)
    assert judged.titles == []
    judged.pass_time(25)
    assert judged.titles == ["job: all ranks silent"]


def test_a_new_process_takes_the_place_of_the_old_one() -> None:
    """After a restart of the run nobody waits for the process before it, and its silence is over."""
    judged = Judged()
    judged.message(0, 10, run="first")
    judged.pass_time(20)
    judged.message(0, 10, run="second")
    judged.pass_time(5)
    assert (len(judged.sent.alerts), len(judged.sent.resolved)) == (1, 1)


def test_a_server_that_stood_still_blames_nobody() -> None:
    """Suspended or stopped for an hour: promises begin anew, and hold then."""
    judged = Judged()
    judged.message(0, 60)
    judged.pass_time(10)
    judged.now += 3600
    judged.pass_time(40)
    assert judged.titles == []
    judged.pass_time(30)
    assert judged.titles == ["job: all ranks silent"]


def restarted(matters: Mapping[str, Alert | None]) -> Judged:
    """A server that takes over silence of a rank, which is still silent."""
    second = Judged(matters)
    second.board.restore(
        Origin("job", 0, 1, "run", "launch"), HeartbeatMessage(0, "progress", 0, 10, {}), False, 1000.0
    )
    second.pass_time(30)
    assert second.sent.resolved == []
    return second


def test_a_restart_repeats_no_alert() -> None:
    """Matters that were open stay open, for receivers that forget what is not sent again, and end as any other."""
    first = Judged()
    first.message(0, 10)
    first.pass_time(20)
    ((key, alert),) = first.remembered.items()
    assert alert is not None
    second = restarted({key: alert})
    assert second.sent.alerts == [alert._replace(repeated=True)]
    second.message(0, 10, run="run", number=9)
    second.pass_time(1)
    assert (second.sent.resolved, second.remembered) == ([key], {key: None})


def test_the_end_of_a_matter_of_an_earlier_version_is_an_alert() -> None:
    """Its database has no alerts: the sender does not know the matter."""
    first = Judged()
    first.message(0, 10)
    first.pass_time(20)
    (key,) = first.remembered
    second = restarted({key: None})
    assert second.titles == []
    second.message(0, 10, run="run", number=9)
    second.pass_time(1)
    assert (second.titles, second.remembered) == (["job: no rank is silent any more"], {key: None})


def test_findings_and_exceptions_become_alerts() -> None:
    """Their key is the same for every rank, so that they are sent once."""
    judged = Judged()
    for rank in range(2):
        judged.message(rank, None, kind="exception", type="ValueError", text="no", step=3, host="node7")
    judged.message(0, None, kind="finding", rule="Rule", name="layer", severity="warning")
    exception, again, finding = judged.sent.alerts
    assert exception.key == again.key
    assert (exception.kind, exception.severity, finding.severity) == ("exception", "critical", "warning")
    assert exception.labels == {"job": "job", "launch": "launch", "rank": "0", "host": "node7", "step": "3"}
    assert "text: no" in exception.text


def test_stages_of_a_job_are_seconds_alone() -> None:
    """Numbers of steps and epochs beside them are none."""
    judged = Judged()
    judged.message(0, 60.0, kind="stage_time", step=7, epoch=1, forward=0.5)
    judged.message(0, 60.0, kind="train_metrics", step=7, loss=1.0, fwd_bwd_time=0.75)
    (job,) = judged.board.jobs
    assert job.stages == {"forward": 0.5, "fwd_bwd": 0.75}


def test_rules_judge_the_numbers_of_the_lowest_rank() -> None:
    """A rule of its own for each job, and a notice when its matter has ended."""
    judged = Judged()
    for rank, losses in ((1, [1.0]), (0, [1.0, 20.0, 30.0, 1.0]), (1, [99.0])):
        for loss in losses:
            judged.message(rank, None, kind="train_metrics", loss=loss, step=5)
    (alert,) = judged.sent.alerts
    assert (alert.kind, alert.labels["step"], judged.sent.resolved) == ("run", "5", [alert.key])


def test_an_alert_that_fails_stops_nothing() -> None:
    """It is counted, and the next look at the promises works."""

    class Broken(Sent):
        def send(self, alert: Alert) -> None:
            super().send(alert)
            raise OSError("no")

    judged = Judged()
    faults, broken = Faults(), Broken()
    judged.judge = RunJudge(judged.board, broken, faults, judged.remembered.__setitem__)
    judged.message(0, 10)
    judged.pass_time(30)
    assert (len(broken.alerts), faults.counts) == (1, {"server: alerts of job: OSError": 1})


def test_processes_are_bounded() -> None:
    """Those that have ended make room for new ones; if none has, new ones are refused."""
    board = RunBoard(keep_seconds=86_400)
    ended = HeartbeatMessage(0, "progress", 0, None, {"state": "ended"})
    for rank in range(MOST_RANKS):
        origin = Origin("job", rank, 1, "run", "launch")
        view = board.admit(origin, 0.0)
        assert view is not None
        board.receive(view, HeartbeatBatch(origin, (ended,)), 0.0) if rank < 3 else None
    assert board.admit(Origin("other", 0, 1, "run", "launch"), 10.0) is not None
    assert board.ranks == MOST_RANKS - 2
    assert [board.admit(Origin("other", rank, 1, "run", "launch"), 20.0) is None for rank in (1, 2, 3)] == [0, 0, 1]


def test_the_dead_give_way_to_new_launches() -> None:
    """A launch that was killed holds no place that the next one needs; its alert ends; one that partly lives keeps
    its own."""
    judged = Judged()
    board, numbers = judged.board, iter(range(1_000_000))

    def launched(name: str, ranks: int, silent: bool) -> list[bool]:
        admitted = []
        for rank in range(ranks):
            origin = Origin("job", rank, ranks, f"{name} {rank}", name)
            view = board.admit(origin, judged.now)
            admitted.append(view is not None)
            if view is not None:
                message = HeartbeatMessage(next(numbers), "progress", 0.0, 10.0 if silent else INFINITE, {})
                board.receive(view, HeartbeatBatch(origin, (message,)), judged.now)
        judged.pass_time(20, tick=5)
        return admitted

    assert all(launched("living", 1000, silent=False))
    for killed in range(40):
        assert all(launched(f"killed {killed}", 1000, silent=True))
    assert board.ranks <= MOST_RANKS
    assert sum(len(job.of("alive")) for job in board.jobs) == 1000
    known = {job.launch for job in board.jobs}
    assert {"living", "killed 39", "killed 38"} <= known
    assert "killed 0" not in known
    gone = {alert.key for alert in judged.sent.alerts if alert.labels["launch"] not in known}
    assert gone <= set(judged.sent.resolved)
    assert len(gone) > 10


@pytest.mark.parametrize(
    ("numbers", "text"), [([0, 1, 2, 3, 7], "0-3, 7"), ([5], "5"), (range(0, 80, 2), "and 8 more ranges"), ([], "")]
)
def test_ranks_are_named_by_ranges(numbers: Iterable[int], text: str) -> None:
    """In a bounded text."""
    assert ranges(list(numbers)).endswith(text)
    assert len(ranges(list(numbers))) < 200


@pytest.mark.slow
def test_a_server_notices_silence_and_return(tmp_path: Path) -> None:
    """The real one, by its own clock; after a restart the rank has all of its promise again."""
    database = tmp_path / "server.sqlite"
    with serving(database) as server:
        server.post(batch(promise=0.1, numbers=[0]))
        wait_for(lambda: server.job("job")["states"] == {"silent": 1}, server.process)
        wait_for(lambda: "job: all ranks silent" in server.errors.read_text(), server.process)
        server.end()
    with serving(database) as server:
        assert server.job("job")["states"] == {"waiting": 1}
        server.post(batch(promise=60, numbers=[1]))
        wait_for(lambda: "no rank is silent any more" in server.errors.read_text(), server.process)
        assert server.job("job")["states"] == {"alive": 1}
        assert server.errors.read_text().count("all ranks silent") == 1


@pytest.mark.slow
def test_a_time_in_milliseconds_silences_nobody(tmp_path: Path) -> None:
    """What the message says arrives with the time of its receipt; so do the alerts of other jobs, also after a
    restart."""
    lines, config = tmp_path / "lines.jsonl", tmp_path / "server.json"
    channels = [{"channel": "file", "args": {"path": str(lines)}}, {"channel": "console"}]
    config.write_text(json.dumps({"alert": {"channels": channels, "group_seconds": 0}}))

    def raised(kind: str, time_: float) -> None:
        whole = batch(kind, kind="exception", values={"type": kind})
        whole["messages"][0]["time"] = time_
        assert server.post(whole, "/v1/exceptions") == (200, {"stored": 1, "known": 0})
        wait_for(lambda: lines.exists() and f"exception {kind}" in lines.read_text(), server.process)

    for _ in range(2):
        with serving(tmp_path / "server.sqlite", "--config", str(config)) as server:
            raised(f"Before{_}", time.time())
            raised(f"Odd{_}", time.time() * 1000)
            raised(f"After{_}", time.time())
            assert all(abs(row["time"] - time.time()) < 600 for row in server.stored())
            assert f"job Odd{_}, rank 0: times are none" in server.errors.read_text()
    assert all(abs(json.loads(line)["time"] - time.time()) < 600 for line in lines.read_text().splitlines())


@pytest.mark.slow
def test_alerts_reach_the_channels_of_the_configuration(tmp_path: Path) -> None:
    """Silence and its end, one line each in the file of the channel."""
    require("probe.core.alerting.alerts")
    channel = {"channel": "file", "args": {"path": str(tmp_path / "lines.jsonl")}}
    config = tmp_path / "server.json"
    config.write_text(json.dumps({"alert": {"channels": [channel], "group_seconds": 0}}))
    lines = tmp_path / "lines.jsonl"
    with serving(tmp_path / "server.sqlite", "--config", str(config)) as server:
        server.post(batch(promise=0.1, numbers=[0]))
        wait_for(lambda: lines.exists() and lines.read_text().count("\n") == 1, server.process)
        server.post(batch(promise=60, numbers=[1]))
        wait_for(lambda: lines.read_text().count("\n") == 2, server.process)
        assert server.end() == 0
    alert, notice = map(json.loads, lines.read_text().splitlines())
    assert (alert["title"], alert["resolved"], notice["resolved"]) == ("job: all ranks silent", False, True)
