"""Summary of a run on one rank, and the lines about a run that are made of the summaries of its ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from probe.core.hindsight.onset import Onset
from probe.core.messages import plural, shown_path
from probe.core.storage.layout import ranks_text
from probe.core.storage.run_directory import zone_note
from probe.core.verdict import DeepSteps, JudgedFinding, Looked, Verdict, united, verdict_of
from probe.core.verdict_picture import VerdictPicture, card_lines

ALL = "all of them recorded"
LOSS = "loss"
"""Name of the loss among the numbers of a finding."""


class LossSpan(NamedTuple):
    """Loss of a run, from its first to its last step."""

    first: float = math.nan
    last: float = math.nan
    finite_until: int | None = None
    """Last step at which it was finite; None if it never was."""
    steps: int = 0
    """Steps at which it was seen."""
    last_step: int = -1
    finite: float = math.nan
    """The last one that was finite."""

    def at(self, step: int, value: float) -> LossSpan:
        """Return the span with one more step."""
        first = self.first if self.steps else value
        if math.isfinite(value):
            return LossSpan(first, value, step, self.steps + 1, step, value)
        return LossSpan(first, value, self.finite_until, self.steps + 1, step, self.finite)

    def change(self) -> str:
        """Return the last finite loss and the last one as a clause; an empty text if every loss was finite, or none."""
        if self.finite_until is None or math.isfinite(self.last) or math.isnan(self.finite):
            return ""
        return f"loss {self.finite:.4g} at step {self.finite_until} -> {self.last:.4g} at step {self.finite_until + 1}"

    def text(self) -> str:
        """Return the span as a clause; an empty text if no loss was seen."""
        if not self.steps:
            return ""
        span = f"loss {self.first:.4g} to {self.last:.4g}"
        if math.isfinite(self.last):
            return span
        if self.finite_until is None:
            return f"{span}, never finite"
        finite = "" if math.isnan(self.finite) else f" ({self.finite:.4g})"
        return f"{span}, last finite at step {self.finite_until}{finite}"


class WatchSummary(NamedTuple):
    """Run of a process, as it stands now."""

    rank: int
    pid: int
    number: int
    """Number of the run among those of its process; the same on ranks that train together."""
    began: float
    """Seconds since the epoch."""
    launch: str
    """Names of the launch, equal on its ranks alone."""
    step: int
    """Number of the step in progress."""
    steps: int
    recorded: int
    """Steps of which rows were collected."""
    why: str
    """Reason for which not all were recorded, as a clause; empty if all were."""
    loss: LossSpan
    findings: tuple[JudgedFinding, ...]
    looked: Looked
    preflight: str
    """Line about checks before training; empty if there were none."""
    directory: str
    """Directory of the rank's files; empty if nothing is written."""
    faults: int
    """Failures and losses inside probe."""
    ended: bool
    """False if the process has written nothing later: it was killed, or goes on."""
    deep: tuple[DeepSteps, ...] = ()
    """Steps in which everything was collected."""

    def as_json(self) -> dict[str, Any]:
        """Return the summary as values that JSON can hold."""
        findings = [as_fields(finding) for finding in self.findings]
        deep = [steps._asdict() for steps in self.deep]
        return {**self._asdict(), "loss": [*self.loss], "findings": findings, "looked": [*self.looked], "deep": deep}

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> WatchSummary:
        """Parse what :meth:`as_json` has returned.

        Raises:
            TypeError, KeyError, ValueError: if it is something else.
        """
        at, not_at = fields["looked"]
        parsed = {
            "loss": LossSpan(*fields["loss"]),
            "findings": tuple(map(finding_of, fields["findings"])),
            "looked": Looked(tuple(at), tuple(not_at)),
            "deep": tuple(DeepSteps(**{**steps, "kinds": tuple(steps["kinds"])}) for steps in fields["deep"]),
        }
        return cls(**{**fields, **parsed})


def as_fields(finding: JudgedFinding) -> dict[str, Any]:
    """Return a finding as values that JSON can hold."""
    return {**finding._asdict(), "onset": None if finding.onset is None else finding.onset._asdict()}


def finding_of(fields: Mapping[str, Any]) -> JudgedFinding:
    """Parse a finding from JSON.

    Raises:
        TypeError, KeyError, ValueError: if it is something else.
    """
    sequences = {name: tuple(fields[name]) for name in ("where", "ranks")}
    return JudgedFinding(**{**fields, **sequences, "onset": Onset.of(fields.get("onset"))})


class RunReport(NamedTuple):
    """Report about a run on all ranks of a node."""

    head: str
    """Clause about its steps and its loss."""
    verdict: Verdict
    files: str
    """Folder of its files; empty if nothing is written."""
    unknown: str
    """Clause about ranks that were killed before they could report; empty if there are none."""
    change: str = ""
    """Clause about the loss before and after; empty if the verdict is not about it."""

    def line(self) -> str:
        """Return the report as one line."""
        return "; ".join(filter(None, [self.head, self.unknown or self.verdict.line(), self._files]))

    def lines(self, picture: VerdictPicture | None = None, blocks: bool = True) -> list[str]:
        """Return the report for a terminal: the verdict first, then what was watched.

        Args:
            picture: of the rows around the place that is named.
            blocks: whether the terminal has block characters.
        """
        if not self.verdict.kind:
            return [*([self.unknown] if self.unknown else self.verdict.lines()), self._watched()]
        lines = card_lines(self.verdict, picture, self.files, self.change, blocks)
        return [*lines, *filter(None, [self.unknown]), self._watched()]

    def _watched(self) -> str:
        return "; ".join(filter(None, [self.head, self._files]))

    @property
    def _files(self) -> str:
        return f"files in {self.files}{zone_note(self.files)}" if self.files else ""


def report_of(
    summaries: Sequence[WatchSummary], of_ranks: Sequence[JudgedFinding] = (), compared: str = ""
) -> RunReport:
    """Return the report about a run.

    Args:
        summaries: those of its ranks.
        of_ranks: findings between ranks.
        compared: noun phrase about the comparison of ranks, for what was looked at; empty if there was none.
    """
    ranks = sorted(summaries, key=lambda summary: summary.rank)
    first = ranks[0]
    alone = len(ranks) == 1 and not of_ranks
    findings = united([(-1 if alone else summary.rank, finding) for summary in ranks for finding in summary.findings])
    looked = first.looked._replace(at=(*first.looked.at, *([compared] if compared else ())))
    files = shown_path(first.directory if alone or not first.directory else str(Path(first.directory).parent))
    deep = [steps for summary in ranks for steps in summary.deep]
    verdict = verdict_of([*of_ranks, *findings], looked, f"probe anomalies {quote(files)}" if files else "", deep)
    change = first.loss.change() if LOSS in verdict.evidence else ""
    return RunReport("; ".join(_head(ranks)), verdict, files, _unknown(ranks), change)


def _head(ranks: Sequence[WatchSummary]) -> list[str]:
    first = ranks[0]
    fewest, most = min(summary.steps for summary in ranks), max(summary.steps for summary in ranks)
    steps = f"{fewest} to {most}" if fewest < most else str(most)
    on = f" on {len(ranks)} ranks" if len(ranks) > 1 else ""
    recorded = f"{first.recorded} of them recorded ({first.why})" if first.recorded < first.steps else ALL
    head = f"{steps} {plural(most, 'step')} watched{on}" + (f", {recorded}" if most and first.ended else "")
    deep = dict.fromkeys(steps.text() for summary in ranks for steps in summary.deep)
    parts = [head, *deep, first.loss.text(), first.preflight if first.ended else ""]
    if faults := sum(summary.faults for summary in ranks):
        parts.append(f"{faults} {plural(faults, 'failure')} inside probe, which training did not notice")
    return [*filter(None, parts)]


def _unknown(ranks: Sequence[WatchSummary]) -> str:
    killed = [summary for summary in ranks if not summary.ended]
    if not killed:
        return ""
    names = f"{plural(len(killed), 'rank')} {ranks_text([summary.rank for summary in killed])}"
    last_step = min(summary.step for summary in killed) - 1
    since = f" after step {last_step}" if any(summary.steps for summary in killed) else ""
    return f"{names} ended without a report: nothing is known{since}"
