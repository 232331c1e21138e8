"""Findings for people: warnings in the log and, if asked for, ``anomaly.json``."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

from probe.core.output.sinks.anomaly_file import AnomalyFile
from probe.core.output.sinks.context import SinkContext
from probe.core.records import Finding, Key, Snapshot
from probe.core.rules.evaluate import explain

logger = logging.getLogger("probe.anomaly")

LINES_A_STEP = 8
"""Findings logged one by one; the others of a step are counted in one line."""


class AnomalySink:
    """Writer of findings, first causes first, to the log and to their dump.

    A finding of the step before is counted, not logged again: a NaN stays for the rest of the run. If any finding is
    new, the step's last line explains the first one in words.
    """

    def __init__(self, context: SinkContext) -> None:
        self._file = AnomalyFile(context) if context.dump else None
        self._before: set[tuple[str, str, Key, str]] = set()

    def open(self) -> None:
        """Do nothing: files are made with the first finding, so a run without findings leaves none."""

    def write(self, snapshot: Snapshot) -> None:
        self._print(snapshot.findings, snapshot.step)
        if self._file is not None and snapshot.findings:
            self._file.write(snapshot.findings)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _print(self, findings: Sequence[Finding], step: int) -> None:
        new = [finding for finding in findings if _identity(finding) not in self._before]
        printed = new[:LINES_A_STEP]
        for finding in printed:
            logger.warning("%s", " ".join(finding.message.splitlines()))
        rest = Counter(finding.rule for finding in findings)
        rest.subtract(finding.rule for finding in printed)
        if total := rest.total():
            rules = ", ".join(f"{rule} {number}" for rule, number in sorted(rest.items()) if number)
            logger.warning("and %d more finding%s at step %d (%s)", total, "s" * (total > 1), step, rules)
        if new:
            what = "New beside what was bad before" if self._before else "First bad"
            logger.warning("%s on rank %d: %s", what, new[0].rank, " ".join(explain(new[0]).splitlines()))
        self._before = {_identity(finding) for finding in findings}


def _identity(finding: Finding) -> tuple[str, str, Key, str]:
    return finding.rule, finding.signal, finding.key, finding.op
