"""Alerts of a run: its findings, its numbers and its end, as messages to people."""

from __future__ import annotations

import socket
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from probe.core.alerting.channels import AlertSender
from probe.core.messages import plural
from probe.core.naming import row_name
from probe.core.records import Alert, Finding, Severity
from probe.core.rules.evaluate import explain
from probe.core.run_state.rules import RunFinding

Cause = Literal["exit", "exception", "sigterm"]
"""Cause of the end of a process."""
QUIET_STEPS = 12
"""Sampled steps without a finding after which an incident has ended, as in `probe anomalies`."""
MOST_LINES = 5
"""Findings that an alert lists."""
MOST_TRACEBACK = 20
"""Last lines of a traceback in an alert."""


def job_name(configured: str | None) -> str:
    """Return the name of the job: the configured one, else that of the script."""
    return configured or Path(sys.argv[0]).stem or "training"


class Alarms:
    """Alerts about one run on one rank.

    Args:
        first: number of the first step.
    """

    def __init__(self, sender: AlertSender, job: str, rank: int, first: int) -> None:
        self._sender, self._first = sender, first
        self._labels = {"job": job, "rank": str(rank), "host": socket.gethostname()}
        self._incident: str | None = None
        """Key of the incident in progress."""
        self._quiet = 0
        """Sampled steps without a finding since the last one with findings."""

    def begun(self) -> None:
        """Send that the run has begun."""
        self._send("begin", "begin", "info", "training has begun", f"at step {self._first}")

    def found(self, step: int, findings: Sequence[Finding]) -> None:
        """Send the first finding of an incident, and that an incident has ended; called with every sampled step
        from the first finding on."""
        if findings:
            self._quiet = 0
            if self._incident is None:
                self._incident = self._begin_incident(step, findings)
            return
        self._quiet += 1
        if self._incident is not None and self._quiet >= QUIET_STEPS:
            key, self._incident = self._incident, None
            self._resolve(key, f"no finding in {QUIET_STEPS} sampled steps up to step {step}")

    def _begin_incident(self, step: int, findings: Sequence[Finding]) -> str:
        first = findings[0]
        key = f"finding {first.rule} {first.signal} {row_name(first.key)} {step}"
        title = f"first bad: {row_name(first.key)} ({first.signal}) on rank {first.rank} at step {step}"
        lines = [" ".join(text.splitlines()) for text in (explain(first), *(f.message for f in findings[:MOST_LINES]))]
        if (more := len(findings) - MOST_LINES) > 0:
            lines.append(f"and {more} more {plural(more, 'finding')} in this step")
        labels = {"step": str(step), "rule": first.rule, "signal": first.signal, "name": row_name(first.key)}
        finite = first.value - first.value == 0
        severity: Severity = "warning" if finite else "critical"
        self._send(key, "finding", severity, title, "\n".join(lines), labels, lasting=True)
        return key

    def run_found(self, findings: Sequence[RunFinding]) -> None:
        """Send findings about numbers of the run."""
        for finding in findings:
            key = f"run {finding.rule} {finding.name}"
            if finding.resolved:
                self._resolve(key, finding.message)
            else:
                labels = {"step": str(finding.step), "rule": finding.rule, "name": finding.name}
                title = f"{finding.name} at step {finding.step}: {finding.rule}"
                self._send(key, "run", finding.severity, title, finding.message, labels, lasting=True)

    def ended(self, cause: Cause, step: int, error: BaseException | None = None) -> None:
        """Send the cause of the end."""
        at = {"step": str(step)}
        if cause == "exit" or (isinstance(error, SystemExit) and not error.code):
            self._send("end", "end", "info", f"training has ended after step {step}", "", at)
        elif cause == "sigterm":
            text = "the process was asked to end (SIGTERM): a launcher, a scheduler or another rank's failure"
            self._send("sigterm", "sigterm", "warning", f"SIGTERM at step {step}", text, at)
        else:
            name = type(error).__name__ if error is not None else "an exception"
            lines = "".join(traceback.format_exception(error)).rstrip().splitlines() if error is not None else []
            title = f"{name} at step {step} on rank {self._labels['rank']}"
            text = "\n".join(lines[-MOST_TRACEBACK:])
            self._send(f"exception {name} {step}", "exception", "critical", title, text, at)

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
        alert = Alert(f"{job} {key}", kind, severity, f"{job}: {title}", text, labels, time.time(), lasting=lasting)
        self._sender.send(alert)
