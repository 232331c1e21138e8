"""Summary of a run on one rank, and the lines about a run that are made of the summaries of its ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from probe.core.hindsight.onset import Onset
from probe.core.language import joined, message, packed, unpacked
from probe.core.messages import shown_path
from probe.core.storage.run_directory import zone_note
from probe.core.verdict import DeepSteps, JudgedFinding, Looked, Verdict, on_ranks, united, verdict_of
from probe.core.verdict_picture import VerdictPicture, card_lines

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
    broken: float = math.nan
    """The first one after it; NaN if there is none, too."""

    def at(self, step: int, value: float) -> LossSpan:
        """Return the span with one more step."""
        first = self.first if self.steps else value
        if math.isfinite(value):
            return LossSpan(first, value, step, self.steps + 1, step, value)
        broken = value if self.last_step == self.finite_until else self.broken
        return LossSpan(first, value, self.finite_until, self.steps + 1, step, self.finite, broken)

    def change(self) -> str:
        """Return the last finite loss and the last one as a clause; an empty text if every loss was finite, or none."""
        if self.finite_until is None or math.isfinite(self.last) or math.isnan(self.finite):
            return ""
        return message(
            "loss {before:.4g} at step {earlier} -> {after:.4g} at step {step}",
            before=self.finite,
            earlier=self.finite_until,
            after=self.broken,
            step=self.finite_until + 1,
        )

    def text(self) -> str:
        """Return the span as a clause; an empty text if no loss was seen."""
        if not self.steps:
            return ""
        span = message("loss {first:.4g} to {last:.4g}", first=self.first, last=self.last)
        if math.isfinite(self.last):
            return span
        if self.finite_until is None:
            return joined(", ", [span, message("never finite")])
        until = message("last finite at step {step}", step=self.finite_until)
        if not math.isnan(self.finite):
            until = message("last finite at step {step} ({value:.4g})", step=self.finite_until, value=self.finite)
        return joined(", ", [span, until])


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
    """Reason for which not all were recorded, or what of them could not be written, as a clause; else empty."""
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
    cost: tuple[float, float] = (math.nan, math.nan)
    """Seconds of probe, and of the steps without it; NaN if they are unknown."""
    still: float = 0.0
    """Seconds for which it had stood still when it was ended; 0 if it had not."""
    budget: tuple[float, ...] = ()
    """Arguments of the budget by which that is judged."""

    def as_json(self) -> dict[str, Any]:
        """Return the summary as values that JSON can hold."""
        findings = [as_fields(finding) for finding in self.findings]
        deep = [steps._asdict() for steps in self.deep]
        texts = {"why": packed(self.why), "preflight": packed(self.preflight)}
        looked = [[*map(packed, texts)] for texts in self.looked]
        return {**self._asdict(), **texts, "loss": [*self.loss], "findings": findings, "looked": looked, "deep": deep}

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
            "looked": Looked(tuple(map(unpacked, at)), tuple(map(unpacked, not_at))),
            **{name: unpacked(fields[name]) for name in ("why", "preflight")},
            "deep": tuple(DeepSteps(**{**steps, "kinds": tuple(steps["kinds"])}) for steps in fields["deep"]),
            "cost": tuple(fields["cost"]),
            "budget": tuple(fields["budget"]),
        }
        return cls(**{**fields, **parsed})


def as_fields(finding: JudgedFinding) -> dict[str, Any]:
    """Return a finding as values that JSON can hold."""
    onset = None if finding.onset is None else finding.onset._asdict()
    return {**finding._asdict(), "text": packed(finding.text), "onset": onset}


def finding_of(fields: Mapping[str, Any]) -> JudgedFinding:
    """Parse a finding from JSON.

    Raises:
        TypeError, KeyError, ValueError: if it is something else.
    """
    sequences = {name: tuple(fields[name]) for name in ("where", "ranks")}
    text, onset = unpacked(fields["text"]), Onset.of(fields.get("onset"))
    return JudgedFinding(**{**fields, **sequences, "text": text, "onset": onset})


class RunReport(NamedTuple):
    """Report about a run on all ranks of a node."""

    facts: tuple[str, ...]
    """Clauses about its steps, its loss, its checks and the cost."""
    verdict: Verdict
    files: str
    """Folder of its files; empty if nothing is written."""
    unknown: str
    """Clause about ranks that were killed before they could report, or stood still; empty if there are none."""
    change: str = ""
    """Clause about the loss before and after; empty if the verdict is not about it."""

    def line(self) -> str:
        """Return the report as one line."""
        verdict = self.verdict.line() if self.verdict.kind or not self.unknown else ""
        return joined("; ", [*self.facts, *filter(None, [self.unknown, verdict, self._files])])

    def lines(self, picture: VerdictPicture | None = None, blocks: bool = True, width: int = 0) -> list[str]:
        """Return the report for a terminal: the verdict first, then what was watched.

        Args:
            picture: of the rows around the place that is named.
            blocks: whether the terminal has block characters.
            width: columns for the picture; 0 for as many as it needs.
        """
        watched = [*self.facts, *filter(None, [self._files])]
        if not self.verdict.kind:
            return [*([self.unknown] if self.unknown else self.verdict.lines()), *watched]
        lines = card_lines(self.verdict, picture, self.files, self.change, blocks, width)
        return [*lines, *filter(None, [self.unknown]), *watched]

    @property
    def _files(self) -> str:
        if not self.files:
            return ""
        return message("files in {folder}{zone}", folder=self.files, zone=zone_note(self.files))


def report_of(
    summaries: Sequence[WatchSummary],
    of_ranks: Sequence[JudgedFinding] = (),
    compared: str = "",
    alone: bool = True,
    relative: bool = True,
) -> RunReport:
    """Return the report about a run.

    Args:
        summaries: those of its ranks.
        of_ranks: findings between ranks.
        compared: noun phrase about the comparison of ranks, for what was looked at; empty if there was none.
        alone: whether the training has no further ranks.
        relative: whether the folder is named as people in the current one write it.
    """
    ranks = sorted(summaries, key=lambda summary: summary.rank)
    first = ranks[0]
    alone = alone and len(ranks) == 1 and not of_ranks
    findings = united([(-1 if alone else summary.rank, finding) for summary in ranks for finding in summary.findings])
    looked = first.looked._replace(at=(*first.looked.at, *([compared] if compared else ())))
    files = first.directory if alone or not first.directory else str(Path(first.directory).parent)
    files = shown_path(files) if relative else files
    deep = [steps for summary in ranks for steps in summary.deep]
    verdict = verdict_of([*of_ranks, *findings], looked, f"probe anomalies {quote(files)}" if files else "", deep)
    origin = next((rank for rank in ranks if rank.rank in verdict.ranks), first)
    change = origin.loss.change() if LOSS in verdict.evidence else ""
    return RunReport(tuple(_facts(ranks, origin.loss)), verdict, files, _unknown(ranks), change)


def _facts(ranks: Sequence[WatchSummary], loss: LossSpan) -> Iterator[str]:
    """Yield clauses about what was watched."""
    first = ranks[0]
    yield _steps(ranks)
    yield from dict.fromkeys(steps.text() for summary in ranks for steps in summary.deep)
    yield from filter(None, [loss.text(), first.preflight if first.ended else ""])
    costs = [(*summary.cost, summary.steps) for summary in ranks if summary.steps and summary.cost[1] > 0]
    if costs:
        spent, plain, steps = max(costs, key=lambda cost: cost[0] / cost[1])
        number, share = float(f"{1000 * spent / steps:.3g}"), 100 * spent / plain
        yield message("cost: {number:g} ms a step ({share:.1f} % longer)", number=number, share=share)
    if faults := sum(summary.faults for summary in ranks):
        failures = "{number} failure inside probe, which training did not notice"
        many = "{number} failures inside probe, which training did not notice"
        yield message(failures if faults == 1 else many, number=faults)


def _steps(ranks: Sequence[WatchSummary]) -> str:
    first, fewest, most = ranks[0], min(rank.steps for rank in ranks), max(rank.steps for rank in ranks)
    parts = [message("{number} step watched" if most == 1 else "{number} steps watched", number=most)]
    if fewest < most:
        parts = [message("{fewest} to {most} steps watched", fewest=fewest, most=most)]
    if len(ranks) > 1:
        parts = [message("{steps} on {number} ranks", steps=parts[0], number=len(ranks))]
    if most and first.ended:
        parts.append(joined("", [first.why or message("all of them recorded")]))
    if most and first.ended and first.recorded < first.steps:
        parts[-1] = message("{number} of them recorded ({why})", number=first.recorded, why=first.why)
    return joined(", ", parts)


def _unknown(ranks: Sequence[WatchSummary]) -> str:
    return joined("; ", [*filter(None, [_killed(ranks), _still(ranks)])])


def _still(ranks: Sequence[WatchSummary]) -> str:
    still = [summary for summary in ranks if summary.still]
    if not still:
        return ""
    return message(
        "{ranks} stood still for {seconds:.0f} s after step {step}, until the end: with "
        '"run": {{"hang": {{"enable": true}}}} in a configuration the stacks are written',
        ranks=on_ranks([summary.rank for summary in still]),
        seconds=max(summary.still for summary in still),
        step=min(summary.step for summary in still) - 1,
    )


def _killed(ranks: Sequence[WatchSummary]) -> str:
    killed = [summary for summary in ranks if not summary.ended]
    if not killed:
        return ""
    names = on_ranks([summary.rank for summary in killed])
    if not any(summary.steps for summary in killed):
        return message("{ranks} ended without a report: nothing is known", ranks=names)
    step = min(summary.step for summary in killed) - 1
    return message("{ranks} ended without a report: nothing is known after step {step}", ranks=names, step=step)
