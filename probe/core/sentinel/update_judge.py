"""The judge of a run's updates: its checks, the numbers that they leave, the files and messages of their findings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from probe.core.checks.check import CheckFinding, JudgedUpdate
from probe.core.checks.loss_calls import LossGraph
from probe.core.checks.panel import CheckPanel
from probe.core.checks.update_facts import Array, UpdateFacts, is_all
from probe.core.door import attempt
from probe.core.faults import Faults
from probe.core.hindsight.onset import LATE, Onset
from probe.core.naming import APPLIED_NORM, BACKWARDS, GRADIENT_NORM, LOSS_ROOT
from probe.core.records import Severity
from probe.core.run_state.rules import RunFinding
from probe.core.run_state.run_numbers import RunNumbers
from probe.core.sentinel.held_norms import HeldNorms
from probe.core.sentinel.own_gradients import TakenGradients
from probe.core.sentinel.rank_lines import DIGEST, RankLine, RankLines
from probe.core.sentinel.read_update import ReadUpdate
from probe.core.sentinel.run_account import RunAccount
from probe.core.storage.check_lines import CheckLines

SEVERITY: Mapping[str, Severity] = {"critical": "critical", "warning": "warning", "note": "info"}
"""Severity of an alert, by the grade of a finding."""
HELD = "sentinel: look back"
"""Place of failures."""
MOST = 1000
"""Findings that are kept."""


class UpdateJudge:
    """Judge of the updates of a run, on the thread of its numbers.

    Args:
        directory: returns the directory of this rank's files; None where nothing is written.
        lines: returns a writer of lines of an optimizer for the parent process; None without one.
    """

    def __init__(
        self,
        numbers: RunNumbers,
        directory: Callable[[], Path | None],
        account: RunAccount,
        lines: Callable[[UpdateFacts], RankLines] | None,
        faults: Faults,
    ) -> None:
        self._numbers, self._directory, self._account, self._faults = numbers, directory, account, faults
        self._new_lines = lines
        self._ranks = dict[int, tuple[tuple[str, ...], RankLines | None]]()
        """Writer of the lines of each optimizer, with the names of the parameters for which it was made."""
        self.panel = CheckPanel(faults)
        self.findings: list[CheckFinding] = []
        self.tripped: Callable[[Sequence[CheckFinding]], object] = lambda _: None
        """Function that is called with what was found."""
        self._lines: CheckLines | None = None
        self._held = HeldNorms()
        account.preflight, account.look_back = self.panel.preflight, self._look_back

    def receive(self, update: ReadUpdate) -> None:
        """Have an update judged on the thread, before the end of its step is processed there."""
        self._numbers.see(partial(self._judge, update))

    def _judge(self, read: ReadUpdate) -> Mapping[str, float]:
        update = read.judged()
        findings = self.panel.judge(update)
        if findings:
            self._keep([self._with_onset(finding) for finding in findings])
        attempt(self._faults, HELD, self._held.hold, update.facts, update.gradients)
        if self._account.stretches:
            self.place(update.facts.step)
        facts = update.facts
        if facts.seen and facts.gradients.read is not None:
            self._account.look("the gradients and the loop at every step")
        if facts.loss_seen and not facts.optimizer:
            self._account.loss(facts.step, facts.loss)
        if self._new_lines is not None:
            attempt(self._faults, "sentinel: lines", self._write_line, update, read.own)
        return numbers_of(update)

    def _with_onset(self, finding: CheckFinding) -> CheckFinding:
        """Return a finding with what the updates before it show about its cause, if that may have begun earlier."""
        if finding.check not in LATE or finding.grade == "note":
            return finding
        return finding._replace(onset=self._look_back(finding.since))

    def _look_back(self, step: int) -> Onset | None:
        """Return what stood out in the updates before a step."""
        return attempt(self._faults, HELD, self._held.onset, step)

    def _write_line(self, update: JudgedUpdate, unreduced: TakenGradients | None) -> None:
        """Write the numbers of an update for the parent process, which compares ranks."""
        facts = update.facts
        if facts.outcome == "skipped" or not len(update.gradients):
            return
        names, lines = self._ranks.get(facts.optimizer, ((), None))
        if names is not facts.names and self._new_lines is not None:
            self._ranks[facts.optimizer] = facts.names, None  # made once, even if that fails
            lines = self._new_lines(facts)
            self._ranks[facts.optimizer] = facts.names, lines
        if lines is not None:
            lines.write(line_of(update, unreduced))

    def place(self, step: int) -> None:
        """Write what rows up to ``step``, which were collected around a finding, say about its place."""
        if placed := self._account.placed(step):
            attempt(self._faults, "sentinel: file", self._write, placed)

    def end(self, operations: int) -> None:
        """Keep what shows at the end of the run, once all updates were judged.

        Args:
            operations: those that have entered graphs in training mode after the last update.
        """
        if findings := self.panel.ended(operations):
            self._account.checked(findings)
            attempt(self._faults, "sentinel: file", self._write, findings)

    def _keep(self, findings: Sequence[CheckFinding]) -> None:
        self.findings += findings[: max(0, MOST - len(self.findings))]
        self._account.checked(findings)
        attempt(self._faults, "sentinel: collection", self.tripped, findings)
        attempt(self._faults, "sentinel: file", self._write, findings)
        self._numbers.found([as_run_finding(finding) for finding in findings])

    def _write(self, findings: Sequence[CheckFinding]) -> None:
        if self._lines is None:
            directory = self._directory()
            if directory is None:
                return
            self._lines = CheckLines(directory)
        self._lines.write(findings)


def as_run_finding(finding: CheckFinding) -> RunFinding:
    """Return the finding of a check as one about a number of the run, for those who receive these."""
    evidence = [*finding.evidence.values(), math.nan, math.nan]
    where, severity = ", ".join(finding.where), SEVERITY[finding.grade]
    return RunFinding(
        finding.check, where, finding.step, evidence[0], evidence[1], finding.text, severity, resolved=False
    )


def line_of(update: JudgedUpdate, own_gradients: TakenGradients | None) -> RankLine:
    """Return the numbers of an update that are compared between ranks."""
    facts, looked = update.facts, update.facts.values
    applied = update.gradients
    if facts.clips is not None:
        applied = applied * np.where(np.isfinite(facts.clips), facts.clips, 1.0)[:, None]
    values = None
    if looked is not None and looked.numbers is not None:
        values = np.full(applied.shape, np.nan)
        values[looked.looked] = looked.numbers()
    unreduced = None if own_gradients is None else own_gradients.table(facts.names)
    hardly_notices = facts.normalises and facts.clip == 1
    is_mean = facts.loss_graph is not None and facts.backwards == 1 and facts.loss_graph().factor == 1
    mean = is_mean and not hardly_notices
    graph = facts.loss_graph() if facts.loss_graph is not None else LossGraph(())
    labels = next((call.labels for call in graph.losses if call.labels), 0)
    masks = int(sum(graph.dropped)) & DIGEST if graph.dropped is not None else 0
    marks = mean, labels, facts.talks, facts.reduces, masks
    return RankLine(facts.step, facts.optimizer, facts.loss, applied, unreduced, values, *marks)


def numbers_of(update: JudgedUpdate) -> dict[str, float]:
    """Return the numbers that an update leaves, by name."""
    facts, norms = update.facts, update.gradients[:, 0]
    end = f"/{facts.optimizer}" if facts.optimizer else ""
    values = {f"{BACKWARDS}{end}": float(facts.backwards)}
    if facts.loss_seen:
        values[f"{LOSS_ROOT}{end}"] = facts.loss
    if facts.gradients.read is not None:
        total = update.total if update.finite else _total(norms, facts)
        values[f"{GRADIENT_NORM}{end}"] = total
        if facts.shown:  # by how much an engine clips is not seen
            values[f"{APPLIED_NORM}{end}"] = total if facts.clips is None else _total(norms * facts.clips, facts)
    return values


def _total(norms: Array, facts: UpdateFacts) -> float:
    """Return the norm of all gradients together."""
    present_norms = norms if is_all(facts.gradients.there) else norms[facts.gradients.there]
    return math.sqrt(present_norms.dot(present_norms))
