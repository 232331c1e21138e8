"""Judge of the jobs: ranks that are silent by their own promise, findings, exceptions, rules about their numbers.

Time is this server's monotonic clock alone: clocks of ranks may differ, and this one's time of day may be set.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

from probe.core.alerting.channels import AlertSender
from probe.core.door import attempt
from probe.core.faults import Faults
from probe.core.language import joined, message
from probe.core.messages import plural, spans
from probe.core.naming import OUTSIDE_SECONDS, PHASE, RANK, STEP_SECONDS
from probe.core.records import SEVERITIES, Alert, Severity
from probe.core.run_state.heartbeat_messages import EVENTS, HeartbeatMessage
from probe.core.run_state.rules import RunFinding, RunRule, RunStep
from probe.services.server.board import LIVE, JobView, RankSummary, RunBoard

_log = logging.getLogger("probe.server")

GRACE_SECONDS = 2.0
"""Network allowance in seconds, on top of each promise: a message may take so long to arrive."""
MOST_COMPARED = 20_000
"""Numbers of all ranks of a job that are compared; others are left out."""
MOST_GATHERED = 128
"""Steps by which a rank may be ahead of the one whose numbers stand for the job; of more, the oldest are dropped."""
LONGEST_TICK = 5.0
"""Seconds between two looks after which this server itself stood still: no promise ran meanwhile."""
FORGOTTEN = message(
    "nothing is known of the job any more: its processes have sent nothing for long, or made room for others"
)
"""Text of the notice about a matter of a job that is forgotten."""
MOST_NAMED = 32
"""Most ranges of ranks in a message."""


class RunJudge:
    """Judge of all jobs, called on one thread.

    Args:
        remember: function that stores the alert of an open matter, or None once it has ended, so that a restart of this
            server repeats no alert and goes on with the matter.
        rules: makers of rules about the numbers of a run, made anew for each job.
    """

    def __init__(
        self,
        board: RunBoard,
        alerts: AlertSender,
        faults: Faults,
        remember: Callable[[str, Alert | None], None],
        rules: Sequence[Callable[[], RunRule]] = (),
        grace_seconds: float = GRACE_SECONDS,
    ) -> None:
        self._board, self._alerts, self._faults, self._remember = board, alerts, faults, remember
        self._makers, self._rules = rules, dict[str, list[RunRule]]()
        self._gathered = dict[str, dict[str, deque[float]]]()
        """Numbers of the ranks of each job, one of each for every step of the job."""
        self._grace_seconds, self._ticked = grace_seconds, -math.inf
        self._open, self._restored = set[str](), set[str]()
        self._reported = dict[str, set[str]]()
        """Keys of open matters about the numbers of each job."""

    def restore(self, matters: Mapping[str, Alert | None]) -> None:
        """Take over the matters that were open when the server ended, each with its alert, if it is known."""
        for key, alert in matters.items():
            self._open.add(key)
            if alert is None:
                self._restored.add(key)
            else:
                self._send(alert.labels.get("job", ""), alert._replace(repeated=True))

    def tick(self, now: float) -> None:
        """Look at the promises of all ranks; called every second or so."""
        if now - self._ticked > LONGEST_TICK and not math.isinf(self._ticked):
            _log.warning("this server stood still for %.0f s: promises begin anew", now - self._ticked)
            for rank in self._board.each_rank():
                rank.deadline += now - self._ticked
        self._ticked = now
        for rank in self._board.each_rank():
            if rank.state in LIVE and now > rank.deadline + self._grace_seconds:
                rank.state = "silent"
        for job in self._board.jobs:
            self._judge_silence(job, now)
            if job.id in self._reported and not job.of(*LIVE, "silent"):
                for key in sorted(self._reported.pop(job.id)):
                    self._end(key, message("{job} has ended", job=job.job))
        self._board.sweep(now)
        self._forget({job.id for job in self._board.jobs})

    def _forget(self, job_ids: set[str]) -> None:
        """Forget rules and matters of jobs that the board has forgotten: nobody can end these later."""
        for job in self._rules.keys() - job_ids:
            del self._rules[job]
            self._gathered.pop(job, None)
        for job in self._reported.keys() - job_ids:
            for key in self._reported.pop(job):
                self._end(key, FORGOTTEN)
        for key in [key for key in self._open if key.split()[-1] not in job_ids]:
            self._open.discard(key)
            self._restored.discard(key)
            self._remember(key, None)
            self._end(key, FORGOTTEN)

    def _judge_silence(self, job: JobView, now: float) -> None:
        """Alert when the first ranks of a job are silent, and again when all are; resolve when none is."""
        silent, part_key, whole_key = job.of("silent"), f"silent {job.id}", f"silent all {job.id}"
        open_keys = {part_key, whole_key} & self._open
        if silent and not job.of(*LIVE):
            if whole_key not in open_keys:
                self._raise(job, whole_key, silent, "all", now)
        elif silent:
            # some ranks of a wholly silent job have returned: its alert goes on, and there is no second one
            if not open_keys:
                self._raise(job, part_key, silent, str(len(silent)), now)
        elif not job.of("waiting"):  # after a restart of the server, a rank must send before its silence is over
            for key in sorted(open_keys):
                self._resolve(job, key)

    def _raise(self, job: JobView, key: str, silent: Sequence[RankSummary], number: str, now: float) -> None:
        first = min(silent, key=lambda rank: rank.received)
        single, named = number == "1", ranges([rank.origin.rank for rank in silent])
        last = message(
            "rank {rank}: last message {ago:.0f} s ago, the next promised within {promise:g} s{phase}{step}",
            rank=first.origin.rank,
            ago=now - first.received,
            promise=first.promise,
            phase=message(", in phase {phase}", phase=first.phase) if first.phase else "",
            step=message(", at step {step:g}", step=first.step) if not math.isnan(first.step) else "",
        )
        lines = [
            message("silent: rank {ranks}" if single else "silent: ranks {ranks}", ranks=named),
            last,
            message("alive: {live} of {world}", live=len(job.of(*LIVE)), world=job.world),
        ]
        title = message("{job}: all ranks silent", job=job.job)
        if number != "all":
            silent_now = message("{number} rank silent" if single else "{number} ranks silent", number=number)
            title = message("{job}: {silent}", job=job.job, silent=silent_now)
        labels = {**_labels(job), "rank": named}
        alert = Alert(key, "hang", "critical", title, joined("\n", lines), labels, time.time(), lasting=True)
        self._open.add(key)
        self._remember(key, alert)
        self._send(job.job, alert)

    def _resolve(self, job: JobView, key: str) -> None:
        self._open.discard(key)
        self._remember(key, None)
        title = message("{job}: no rank is silent any more", job=job.job)
        alive, ended = len(job.of("alive")), len(job.of("ended"))
        text = message("{title}; {alive} alive, {ended} ended", title=title, alive=alive, ended=ended)
        if key in self._restored:  # its alert is not known: the database is of an earlier version
            self._restored.discard(key)
            alert = Alert(f"{key} over", "hang", "critical", title, text, _labels(job), time.time())
            self._send(job.job, alert)
            return
        self._end(key, text)

    def _end(self, key: str, text: str) -> None:
        attempt(self._faults, "server: alerts", self._alerts.resolve, key, text)

    def judge(self, rank: RankSummary, messages: Iterable[HeartbeatMessage], late: bool = False) -> None:
        """Judge messages that were stored now: findings and exceptions of a run, and its numbers by the rules, unless
        they are ``late``."""
        job = self._board.view_of(rank.origin)
        for sent in messages:
            if job is not None and sent.kind in EVENTS:
                job.events += 1
                self._send(job.job, _event_alert(job, rank, sent))
            if late:
                continue
            stands_for_job = self._board.apply(rank, sent)
            if job is not None and self._makers:
                self._gather(job, rank, sent)
                if stands_for_job:
                    self._judge_numbers(job, rank, sent)

    def _gather(self, job: JobView, rank: RankSummary, message: HeartbeatMessage) -> None:
        """Keep the numbers of a rank that are compared with those of others, for the next steps of the job."""
        for name, value in message.values.items():
            comparable = name == OUTSIDE_SECONDS or name.startswith(PHASE)
            if comparable and isinstance(value, int | float) and not isinstance(value, bool):
                of_job, key = self._gathered.setdefault(job.id, {}), f"{RANK}{rank.origin.rank}/{name}"
                if key in of_job or len(of_job) < MOST_COMPARED:
                    of_job.setdefault(key, deque(maxlen=MOST_GATHERED)).append(float(value))

    def _judge_numbers(self, job: JobView, rank: RankSummary, message: HeartbeatMessage) -> None:
        if job.id not in self._rules:
            self._rules[job.id] = [make() for make in self._makers]
        values = {
            name: float(value)
            for name, value in {**message.values, **rank.numbers}.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        gathered = self._gathered.get(job.id, {})
        of_ranks = {name: waiting.popleft() for name, waiting in gathered.items() if waiting}
        number = 0 if math.isnan(rank.step) or math.isinf(rank.step) else int(rank.step)
        step = RunStep(number, message.time, values.get(STEP_SECONDS, math.nan), "applied", values | of_ranks)
        for rule in self._rules[job.id]:
            try:
                for finding in rule.judge(step):
                    self._report(job, rank, finding)
            except Exception as error:  # noqa: BLE001 - a rule that fails is no reason to stop the server
                self._faults.note(f"server: rule {type(rule).__name__}", error)

    def _report(self, job: JobView, rank: RankSummary, finding: RunFinding) -> None:
        key = f"run {job.id} {finding.rule} {finding.name}"
        if finding.resolved:
            self._reported.get(job.id, set()).discard(key)
            self._end(key, finding.message)
            return
        labels = {**_labels(job), "rank": str(rank.origin.rank), "step": str(finding.step), "rule": finding.rule}
        title = message("{job}: {rule} of {name}", job=job.job, rule=finding.rule, name=finding.name)
        self._reported.setdefault(job.id, set()).add(key)
        now = time.time()
        alert = Alert(key, "run", finding.severity, title, finding.message, labels, now, lasting=True)
        self._send(job.job, alert)

    def _send(self, job: str, alert: Alert) -> None:
        attempt(self._faults, f"server: alerts of {job}", self._alerts.send, alert)


def _event_alert(job: JobView, rank: RankSummary, event: HeartbeatMessage) -> Alert:
    """Alert about a finding or an exception; its key is the same for all ranks of the job."""
    values = event.values
    source = " ".join(str(values[name]) for name in ("rule", "type", "name", "op") if values.get(name) is not None)
    asked = values.get("severity")
    severity = cast(Severity, asked) if asked in SEVERITIES else "critical"
    labels = {**_labels(job), "rank": str(rank.origin.rank)}
    labels |= {name: str(values[name]) for name in ("host", "rule", "step") if values.get(name) is not None}
    lines = [message("{name}: {value}", name=message(name), value=value) for name, value in values.items()]
    title = message("{job}: {kind} {source}", job=job.job, kind=message(event.kind), source=source)
    key = f"{event.kind} {job.id} {source}".strip()
    resolved = values.get("resolved") is True
    return Alert(key, event.kind, severity, title, joined("\n", lines), labels, event.time, resolved)


def _labels(job: JobView) -> Mapping[str, str]:
    return {"job": job.job, "launch": job.launch}


def ranges(numbers: Sequence[int]) -> str:
    """Return ``0-3, 7`` for 0, 1, 2, 3 and 7."""
    texts = spans(numbers)
    more = len(texts) - MOST_NAMED
    return ", ".join(texts[:MOST_NAMED]) + (f" and {more} more {plural(more, 'range')}" if more > 0 else "")
