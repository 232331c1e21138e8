"""Alerts of a run: its findings, its numbers and its end, as messages to people."""

from __future__ import annotations

import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from probe.core.alerting.channels import AlertSender
from probe.core.judged_findings import of_number
from probe.core.language import joined, message
from probe.core.naming import row_name
from probe.core.records import Alert, Finding, Severity
from probe.core.rules.evaluate import judged
from probe.core.run_state.rules import RunFinding
from probe.core.sentinel.watch_summary import RunReport
from probe.core.verdict import JudgedFinding
from probe.core.verdict_picture import card_lines

Cause = Literal["exit", "exception", "sigterm"]
"""Cause of the end of a process."""
QUIET_STEPS = 12
"""Sampled steps without a finding after which an incident has ended, as in `probe anomalies`."""
PAUSE_STEPS = 50
"""Steps without a finding after which another one is a matter of its own."""
MOST_TRACEBACK = 20
"""Last lines of a traceback in an alert."""


def job_name(configured: str | None) -> str:
    """Return the name of the job: the configured one, else that of the script."""
    return configured or Path(sys.argv[0]).stem or "training"


class Alarms:
    """Alerts about one run on one rank: each says what the verdict about its incident says.

    Args:
        first: number of the first step.
        report: function that returns the report about what was found from a step on, else about a finding.
    """

    def __init__(
        self,
        sender: AlertSender,
        job: str,
        rank: int,
        first: int,
        report: Callable[[int, JudgedFinding], RunReport],
    ) -> None:
        self._sender, self._first, self._report = sender, first, report
        self._labels = {"job": job, "rank": str(rank), "host": socket.gethostname()}
        self._incident: str | None = None
        """Key of the incident in the rows that is in progress."""
        self._quiet = 0
        """Sampled steps without a finding since the last one with findings."""
        self._sent: set[str] = set()
        """Titles of the alerts about what goes on."""
        self._since, self._latest = 0, -1
        """First step of what goes on, and the latest at which something was found. Two threads write them: at worst an
        alert is sent twice."""

    def begun(self) -> None:
        """Send that the run has begun."""
        text = message("at step {step}", step=self._first)
        self._send("begin", "begin", "info", message("training has begun"), text)

    def found(self, step: int, findings: Sequence[Finding]) -> None:
        """Send the first finding of an incident, and that an incident has ended; called with every sampled step
        from the first finding on."""
        if findings:
            self._quiet = 0
            if self._incident is None:
                self._incident = self._begin_incident(step, findings[0])
            self._latest = max(self._latest, step)
            return
        self._quiet += 1
        if self._incident is not None and self._quiet >= QUIET_STEPS:
            key, self._incident = self._incident, None
            text = message("no finding in {number} sampled steps up to step {step}", number=QUIET_STEPS, step=step)
            self._resolve(key, text)

    def _begin_incident(self, step: int, first: Finding) -> str:
        name = row_name(first.key)
        key = f"finding {first.rule} {first.signal} {name} {step}"
        labels = {"step": str(step), "rule": first.rule, "signal": first.signal, "name": name}
        self._send_verdict(key, "finding", judged(first), labels)
        return key

    def run_found(self, findings: Sequence[RunFinding]) -> None:
        """Send findings about numbers of the run, and of checks."""
        for finding in findings:
            key = f"run {finding.rule} {finding.name}"
            if finding.resolved:
                self._resolve(key, finding.message)
            elif finding.severity == "info":
                self._send(
                    key, "run", "info", message(finding.rule), finding.message, {"step": str(finding.step)}, True
                )
            else:
                labels = {"step": str(finding.step), "rule": finding.rule, "name": finding.name}
                self._send_verdict(key, "run", of_number(finding), labels)

    def _send_verdict(
        self,
        key: str,
        kind: str,
        finding: JudgedFinding,
        labels: Mapping[str, str],
    ) -> None:
        """Send the verdict about what goes on, unless that was sent before."""
        if finding.step > self._latest + PAUSE_STEPS:
            self._since = finding.step - PAUSE_STEPS
            self._sent.clear()
        self._latest = max(self._latest, finding.step)
        report = self._report(self._since, finding)
        verdict = report.verdict
        title = verdict.head()
        if title in self._sent:
            return
        self._sent.add(title)
        severity: Severity = "critical" if verdict.grade == "critical" else "warning"
        lines = card_lines(verdict, None, report.files, report.change)[1:]
        self._send(key, kind, severity, title, joined("\n", lines), labels, lasting=True)

    def ended(self, cause: Cause, step: int, error: BaseException | None = None) -> None:
        """Send the cause of the end."""
        at = {"step": str(step)}
        if cause == "exit" or (isinstance(error, SystemExit) and not error.code):
            self._send("end", "end", "info", message("training has ended after step {step}", step=step), "", at)
        elif cause == "sigterm":
            text = message("the process was asked to end (SIGTERM): a launcher, a scheduler or another rank's failure")
            self._send("sigterm", "sigterm", "warning", message("SIGTERM at step {step}", step=step), text, at)
        else:
            name = type(error).__name__ if error is not None else "an exception"
            lines = "".join(traceback.format_exception(error)).rstrip().splitlines() if error is not None else []
            title = message("{name} at step {step} on rank {rank}", name=name, step=step, rank=self._labels["rank"])
            last_lines = "\n".join(lines[-MOST_TRACEBACK:])
            self._send(f"exception {name} {step}", "exception", "critical", title, last_lines, at)

    def _resolve(self, key: str, text: str) -> None:
        self._sender.resolve(f"{self._labels['job']} {key}", text)

    def close(self, seconds: float) -> None:
        """Send what is pending within ``seconds``."""
        self._sender.close(seconds)

    def _send(
        self,
        key: str,
        kind: str,
        severity: Severity,
        title: str,
        text: str,
        more: Mapping[str, str] | None = None,
        lasting: bool = False,
    ) -> None:
        job = self._labels["job"]
        labels = self._labels | dict(more or {})
        self._sender.send(Alert(f"{job} {key}", kind, severity, title, text, labels, time.time(), lasting=lasting))
