"""What a report is told about the cause: findings, and a paragraph in words.

Whoever analyses a run gives :func:`probe.core.analysis.report.write.write_report` a :class:`Diagnosis`. Without one,
the report makes do (:func:`preliminary`) with what the live rules have left in ``anomaly.json`` (:func:`dumped`) and
with the first numbers that are not finite.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from pathlib import Path
from typing import NamedTuple

from probe.core.analysis.diagnosis.analyse import Analysis
from probe.core.analysis.diagnosis.causality import Cause
from probe.core.analysis.diagnosis.extent import counted, nothing_judged, run_found
from probe.core.analysis.diagnosis.located_finding import Located
from probe.core.analysis.report.survey import Survey
from probe.core.messages import printable
from probe.core.naming import signal_of
from probe.core.rules.causal_order import position
from probe.core.rules.evaluate import word
from probe.core.storage.anomaly_json import Entry, rank_folders, read
from probe.core.storage.anomaly_runs import belongs
from probe.core.storage.directories import RecordedRun
from probe.core.storage.layout import cell_name
from probe.core.storage.problems import Problems

MOST = 2000
"""Findings that are listed; more are counted."""


class Mark(NamedTuple):
    """One finding as the report shows it."""

    rule: str
    signal: str
    name: str
    """As in the column ``name`` of the files."""
    op: str
    value: float | None
    """None where a file of findings does not say it."""
    step: int
    rank: int
    micro_step: int | None = None
    """None where it tells nothing apart."""
    cause: str = ""
    """``initiating``, ``cascade``, ``teardown``; empty if nobody has judged."""
    message: str = ""
    vpp_stage: int = 0
    order: int = 0
    """Position in the order of the step's execution."""


@dataclass(frozen=True)
class Diagnosis:
    """What the first card of a report says."""

    paragraph: str
    """What happened first, where, and what followed; text."""
    findings: Sequence[Mark]
    """In the order of cause; the first one is shown with its evidence."""
    number: int = 0
    """How many there are, if more than ``findings`` lists."""
    note: str = ""
    """How it was found; what it cannot know."""
    clear: bool = True
    """Whether any number was looked at: without that, that nothing was found says nothing."""

    @property
    def total(self) -> int:
        return max(self.number, len(self.findings))


def preliminary(dumped: Sequence[Mark], number: int, first_bad: Sequence[Mark], known: Survey | None) -> Diagnosis:
    """The best that can be said without an analysis of the whole run.

    Args:
        dumped: the findings of the rules while the run went on, ``number`` in all.
        first_bad: the first numbers that are not finite.
        known: what there is in the files; None for nothing.
    """
    # That a rule has seen the same number too makes it no second finding.
    seen = {(mark.signal, mark.name, mark.op, mark.step, mark.rank) for mark in dumped}
    new = [mark for mark in first_bad if (mark.signal, mark.name, mark.op, mark.step, mark.rank) not in seen]
    marks = sorted([*dumped, *new], key=causal)
    signals = known.signals if known else []
    if not marks and not signals:
        return Diagnosis(
            "Nothing could be judged: there is no row in the files, and no finding was dumped.", (), clear=False
        )
    if not marks:
        rows = f"{sum(s.number for s in signals):,} rows of {', '.join(s.signal for s in signals)}"
        what = f"every number is finite in {rows}, and no finding was dumped"
        return Diagnosis(f"Nothing was found: {what}. Rules did not judge the files.", ())
    paragraph = f"The first thing that went wrong: {sentence(marks[0])}"
    note = "In order of steps and of what a step does. Which of them caused which was not judged."
    return Diagnosis(paragraph, marks[:MOST], number + len(new), note)


def sentence(mark: Mark) -> str:
    """``NaN at step 3 on rank 1: norm of fc.weight (weight gradient ...) is nan.``"""
    micro = "" if mark.micro_step is None else f", micro step {mark.micro_step},"
    meaning = signal_of(mark.signal).meaning
    return (
        f"{kind(mark)} at step {mark.step}{micro} on rank {mark.rank}: {mark.op} of {printable(mark.name)} ({meaning})"
        f"{'' if mark.value is None else f' is {mark.value:.6g}'}."
    )


def kind(mark: Mark) -> str:
    """In a word or two, what is wrong with the number: ``NaN``, ``Inf``, ``Spike``, ..."""
    return word(mark.rule, mark.op, mark.value)


def causal(mark: Mark) -> tuple[int, int, int, int, int]:
    """Sorts marks: position in the course of training, then the place in the order of execution."""
    return *position(mark.step, signal_of(mark.signal).phase, mark.micro_step), mark.order


def dumped(root: Path, run: RecordedRun, first: int, last: int, problems: Problems) -> tuple[list[Mark], int]:
    """The earliest findings of ``run`` in ``root/anomaly_detected``, at most ``MOST``, and how many there are.

    Of files of older versions, which do not say of which run a finding is, steps from ``first`` to ``last`` count.
    """
    number, is_own = 0, belongs(run)

    def marks() -> Iterator[Mark]:
        nonlocal number
        for _, entry in read(root, problems):
            own = is_own(entry)
            if own or (own is None and entry.rank in run.ranks and first <= entry.step <= last):
                number += 1
                yield _mark(entry)

    earliest = nsmallest(MOST, marks(), key=causal) if rank_folders(root) else []
    return earliest, number


def _mark(entry: Entry) -> Mark:
    rule, op, value, _ = entry.said
    return Mark(
        rule=rule,
        signal=entry.signal,
        name=entry.row,
        op=op,
        value=value,
        step=entry.step,
        rank=entry.rank,
        micro_step=entry.micro_step if entry.micro_stepped else None,
        message=entry.message,
        vpp_stage=entry.vpp_stage,
        order=entry.call_id,
    )


def card(analysis: Analysis) -> Diagnosis:
    """What a report says of the cause: the main story first, then the others in order of time."""
    told = [analysis.diagnosis, *analysis.others] if analysis.diagnosis else []
    pairs = [pair for diagnosis in told for pair in diagnosis.story.findings]
    text = "\n".join([*summary(analysis), *(printable(diagnosis.text) for diagnosis in told)])
    clear = bool(analysis.extent.rows) and not analysis.unexplained
    marks, note = [_located_mark(*pair) for pair in pairs[:MOST]], " ".join(analysis.notes)
    return Diagnosis(text, marks, analysis.number, note, clear)


def summary(analysis: Analysis) -> list[str]:
    """What is to be known before any diagnosis: what was judged if nothing was found, and what the run itself found
    where its rows cannot say it."""
    if not analysis.extent.rows:
        found = list(run_found(analysis.run))
        if any(counted(analysis.run).values()) and not analysis.diagnosis:
            found.append('No file says which: "alert": {"dump": true} would have.')
        return [f"{_sentence(nothing_judged(analysis.run))}.", " ".join(found)]
    if analysis.unexplained:
        found = list(run_found(analysis.run))
        return [f"Nothing was found in what was judged ({analysis.extent.text}). But: {' '.join(found)}"]
    if analysis.diagnosis is None:
        return [f"Nothing was found in what was judged: {analysis.extent.text}."]
    return []


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _located_mark(located: Located, cause: Cause) -> Mark:
    finding = located.finding
    return Mark(
        rule=finding.rule,
        signal=finding.signal,
        name=cell_name(finding.key),
        op=finding.op,
        value=finding.value,
        step=finding.step,
        rank=finding.rank,
        micro_step=located.micro_step,
        cause=cause.value,
        message=finding.message,
        vpp_stage=finding.key.stage,
        order=finding.order,
    )
