"""Findings and the diagnosis that a report shows.

A caller that has analysed a run passes a :class:`Diagnosis` to :func:`probe.core.analysis.report.write.write_report`.
Without one, the report builds a :func:`preliminary` one from the findings that the live rules dumped in
``anomaly.json`` (:func:`dumped`) and from the first numbers that are not finite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Any, NamedTuple

from probe.core.analysis.diagnosis.analyse import Analysis
from probe.core.analysis.diagnosis.causality import Cause
from probe.core.analysis.diagnosis.check_findings import check_texts
from probe.core.analysis.diagnosis.evaluate import counted, nothing_judged, run_found
from probe.core.analysis.diagnosis.located_finding import Located
from probe.core.analysis.pictures.survey import Survey
from probe.core.analysis.report.page_verdict import page_verdict
from probe.core.language import capitalized, joined, message, translated
from probe.core.messages import printable
from probe.core.naming import signal_of
from probe.core.rules.causal_order import position
from probe.core.rules.evaluate import word
from probe.core.storage.anomaly_json import Entry, rank_folders, read
from probe.core.storage.anomaly_runs import belongs
from probe.core.storage.directories import RecordedRun
from probe.core.storage.layout import PP_STAGE, STAGE, cell_name
from probe.core.storage.location import Place
from probe.core.storage.problems import Problems

MOST = 2000
"""Most findings that are listed; more are counted."""
Label = Callable[[str, int, int, str], str]
"""Label of a row by its signal, pipeline stage, virtual stage and name."""


class Mark(NamedTuple):
    """Finding as the page shows it."""

    rule: str
    signal: str
    name: str
    """Name as in the column ``name`` of the files."""
    op: str
    value: float | None
    """Value; None if a file of findings has none."""
    step: int
    rank: int
    micro_step: int | None = None
    """Micro step; None if rows of the signal are not distinguished by it."""
    cause: str = ""
    """``initiating``, ``cascade``, ``teardown``; empty if not judged."""
    message: str = ""
    vpp_stage: int = 0
    order: int = 0
    """Position in the order of the step's execution."""
    expected: float | None = None
    """Number that its rule expected; None if it expects none."""
    row: str = ""
    """Label of the row; empty before :func:`labelled`."""

    @property
    def shown(self) -> dict[str, Any]:
        """The fields for a page, with the kind of the anomaly."""
        fields = {name: value for name, value in self._asdict().items() if name not in ("name", STAGE)}
        return {**fields, "kind": kind(self)}


@dataclass(frozen=True)
class Diagnosis:
    """Findings of a run with the first cause, as a page has them."""

    paragraph: str
    """Text about the first cause, its place and its consequences."""
    findings: Sequence[Mark]
    """Findings in causal order; the first one is shown with its evidence."""
    number: int = 0
    """Number of all findings, if more than ``findings`` lists."""
    note: str = ""
    """Remark on how the diagnosis was made, and on its limits."""
    clear: bool = True
    """True if any number was judged: otherwise a result without findings means nothing."""
    is_placed: bool = True
    """False if the first finding only follows from weights that were spoilt before."""
    page: Mapping[str, Any] = field(default_factory=dict)
    """Verdict, place and loss of :func:`probe.core.analysis.report.page_verdict.page_verdict`; empty if no analysis was
    made."""
    cause: Mapping[str, Any] | None = None
    """First cause: ``kind``, ``text``, ``row``, and with a place ``signal, op, rank, step``; of None a report makes one
    of the first finding."""

    @property
    def total(self) -> int:
        return max(self.number, len(self.findings))

    @property
    def text(self) -> str:
        """Paragraph and note."""
        return "\n".join(filter(None, [self.paragraph, self.note]))

    def fields(self, most: int) -> dict[str, Any]:
        """Fields of a page's answer about the run, with ``most`` findings at most, which have labels."""
        listed = [mark.shown for mark in self.findings[:most]]
        return {"finding_list": listed, "finding_total": self.total, "cause": self.cause, **self.page}


def preliminary(dumped: Sequence[Mark], number: int, first_bad: Sequence[Mark], known: Survey | None) -> Diagnosis:
    """Diagnosis without an analysis of the whole run.

    Args:
        dumped: findings of the live rules, ``number`` in all.
        first_bad: first numbers that are not finite.
        known: survey of the files; None if there are none.
    """
    # A number that a rule has reported too is no second finding.
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
    note = "In causal order within each step. Which of them caused which was not judged."
    return Diagnosis(paragraph, marks[:MOST], number + len(new), note)


def sentence(mark: Mark) -> str:
    """Sentence such as ``NaN at step 3 on rank 1: norm of fc.weight (weight gradient ...) is nan.``"""
    micro = "" if mark.micro_step is None else f", micro step {mark.micro_step},"
    meaning = signal_of(mark.signal).meaning
    return (
        f"{kind(mark)} at step {mark.step}{micro} on rank {mark.rank}: {mark.op} of {printable(mark.name)} ({meaning})"
        f"{'' if mark.value is None else f' is {mark.value:.6g}'}."
    )


def kind(mark: Mark) -> str:
    """Kind of the anomaly in a word or two: ``NaN``, ``Inf``, ``Spike``, ..."""
    return word(mark.rule, mark.op, mark.value)


def labelled(marks: Iterable[Mark], label: Label, stages: Mapping[int, int]) -> list[Mark]:
    """Findings with the labels of their rows; ``stages`` is the pipeline stage of each rank."""
    return [
        mark._replace(row=label(mark.signal, stages.get(mark.rank, 0), mark.vpp_stage, mark.name)) for mark in marks
    ]


def placed(page: Mapping[str, Any], label: Label) -> dict[str, Any]:
    """Fields of a page's verdict, with the label of the row that it names."""
    focus = page.get("focus")
    row = focus and label(focus["signal"], focus[PP_STAGE], 0, focus["name"])
    return {**page, "focus": focus and {**focus, "row": row}}


def stages_of_ranks(run: RecordedRun) -> dict[int, int]:
    """Pipeline stage of each rank of ``run``."""
    return {directory.rank: directory.manifest.pipeline_stage for directory in run.directories}


def causal(mark: Mark) -> tuple[int, int, int, int, int]:
    """Sort key for marks: position within training, then the place in the order of execution."""
    return *position(mark.step, signal_of(mark.signal).phase, mark.micro_step), mark.order


def dumped(root: Place, run: RecordedRun, first: int, last: int, problems: Problems) -> tuple[list[Mark], int]:
    """Earliest findings of ``run`` in ``root/anomaly_detected``, at most ``MOST``, and the number of all.

    Files of older versions do not name the run of a finding: theirs count if the step is from ``first`` to ``last``.
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
    rule, op, value, _ = entry.judgement
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
    """Diagnosis of an analysis: the main incident first, then the others in order of time."""
    diagnoses = [analysis.diagnosis, *analysis.others] if analysis.diagnosis else []
    pairs = [pair for diagnosis in diagnoses for pair in diagnosis.incident.findings]
    shown = [*summary(analysis), *check_texts(analysis.of_checks), *(diagnosis.text for diagnosis in diagnoses)]
    text = "\n".join(printable(translated(line)) for line in shown)
    clear = bool(analysis.extent.rows) and not analysis.unexplained
    marks, note = [_located_mark(*pair) for pair in pairs[:MOST]], " ".join(analysis.notes)
    is_placed = analysis.diagnosis is None or analysis.diagnosis.spoilt is None
    return Diagnosis(text, marks, analysis.number, note, clear, is_placed, page_verdict(analysis))


def summary(analysis: Analysis) -> list[str]:
    """Lines before any diagnosis: the extent of the judged rows if nothing was found, and the findings that the run
    itself counted if its rows do not show them."""
    if not analysis.extent.rows:
        found = list(run_found(analysis.run))
        if any(counted(analysis.run).values()) and not analysis.diagnosis:
            found.append(message('No file lists them: "alert": {"dump": true} would have.'))
        return [message("{sentence}.", sentence=capitalized(nothing_judged(analysis.run))), joined(" ", found)]
    if analysis.unexplained:
        found = list(run_found(analysis.run))
        return [
            message(
                "Nothing was found in what was judged ({extent}). But: {sentences}",
                extent=analysis.extent.text,
                sentences=joined(" ", found),
            )
        ]
    if analysis.diagnosis is None and any(each.is_grave for each in analysis.of_checks):
        return [message("The rules found nothing in {extent}; other findings follow.", extent=analysis.extent.text)]
    if analysis.diagnosis is None:
        return [message("Nothing was found in what was judged: {extent}.", extent=analysis.extent.text)]
    return []


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
