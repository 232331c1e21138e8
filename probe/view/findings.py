"""Findings of a run as the page has them: of its analysis, or, before there is one, those that the run has dumped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from probe.core.analysis.report.findings import Diagnosis, Label, Mark, dumped, kind, labelled, placed, sentence
from probe.core.storage.anomaly_json import FILE, rank_folders
from probe.core.storage.directories import RecordedRun
from probe.core.storage.layout import MICRO_STEP, PP_STAGE, STAGE, ranks_text
from probe.core.storage.location import Place
from probe.core.storage.problems import Problems
from probe.view.run_files import FileStamp, stamp_of

MOST_SHOWN = 200
"""Findings that an answer about a run has."""


class DumpedFindings:
    """Findings that runs in a folder have dumped; files that have not changed are not read again."""

    def __init__(self) -> None:
        self._stamps: dict[Place, FileStamp | None] = {}
        self._found: tuple[list[Mark], int] = [], 0

    def read(self, root: Place, run: RecordedRun, problems: Problems) -> tuple[list[Mark], int]:
        """Return the earliest findings of ``run``, and the number of all."""
        try:
            files = [folder / FILE for folder in rank_folders(root)]
        except (OSError, ValueError):  # nothing was dumped
            return [], 0
        stamps = {file: stamp_of(file) for file in files}
        if stamps != self._stamps or not files:
            first = min(directory.first_step for directory in run.directories)
            self._found = dumped(root, run, first, 1 << 31, problems) if files else ([], 0)
            self._stamps = stamps
        return self._found


def of_dump(marks: Iterable[Mark], number: int, label: Label, stages: Mapping[int, int]) -> Diagnosis:
    """Return the diagnosis of dumped findings, the earliest of each tensor: the earliest of all is the first cause, as
    long as nothing was judged."""
    first = dict[tuple[Any, ...], Mark]()
    for mark in marks:
        first.setdefault((mark.rank, mark.signal, mark.vpp_stage, mark.name), mark)
    kept = [*first.values()]
    if not kept:
        return Diagnosis("", (), number)
    findings, text = labelled(kept, label, stages), sentence(kept[0])
    return Diagnosis(text, findings, number, cause=_cause(kind(kept[0]), text, findings[0], (findings[0].rank,)))


def of_analysis(answer: Mapping[str, Any], label: Label) -> Diagnosis:
    """Return the diagnosis of an analysis, from its JSON."""
    findings = _of_rows(answer["kept"], label)
    findings += [_run_finding(each) for each in answer["run_numbers"]]
    number = answer["number"] + len(answer["run_numbers"])
    main, page = answer["diagnosis"], placed({name: answer[name] for name in ("verdict", "focus", "loss")}, label)
    if main is None:
        return Diagnosis("", findings, number, page=page)
    (first,) = _of_rows([main["first"]], label)
    cause = {**_cause(main["kind"], short_text(main), first, main["ranks"]), "text": main["text"]}
    return Diagnosis(main["text"], findings, number, page=page, cause=cause)


def health_of(state: str, answer: Mapping[str, Any] | None, findings: int, recorded: int | None) -> str:
    """Return what the page may say of a run: ``healthy`` only if the analysis is done and has judged all that is there,
    and neither it nor the run itself has a finding.

    Args:
        state: state of the analysis.
        answer: its JSON; None if there is none.
        findings: number of findings that the page has.
        recorded: number of findings that the run itself counted.

    Returns:
        ``failed`` or ``running``, as the analysis is; ``found``; ``unexplained``: the run itself counted findings, and
        neither its files nor its dump have any; ``incomplete``: nothing, or not everything, could be judged; or
        ``healthy``.
    """
    if state != "done" or answer is None:
        return "failed" if state == "failed" else "running"
    if findings or answer["diagnosis"]:
        return "found"
    if recorded or any(answer["run_found"].values()):
        return "unexplained"
    return "incomplete" if answer["skipped"] or not answer["judged"]["rows"] else "healthy"


def short_text(diagnosis: Mapping[str, Any]) -> str:
    """Return the place of a first cause as one sentence, from the JSON of its diagnosis."""
    return sentence(_mark(diagnosis["first"])._replace(micro_step=None))


def _cause(name: str, text: str, first: Mark, ranks: Iterable[int]) -> Mapping[str, Any]:
    fields = {name: getattr(first, name) for name in ("row", "signal", "op", "rank", "step")}
    return {"kind": name, "sentence": text, "text": text, **fields, "ranks": ranks_text(list(ranks))}


def _of_rows(entries: Sequence[Mapping[str, Any]], label: Label) -> list[Mark]:
    return labelled(map(_mark, entries), label, {entry["rank"]: entry[PP_STAGE] for entry in entries})


def _mark(entry: Mapping[str, Any]) -> Mark:
    """Return a finding from the JSON of an analysis."""
    return Mark(
        rule=entry["rule"],
        signal=entry["signal"],
        name=entry["name"],
        op=entry["op"],
        value=_number(entry["value"]),
        step=entry["step"],
        rank=entry["rank"],
        micro_step=entry[MICRO_STEP],
        cause=entry.get("cause", ""),
        message=entry["message"],
        vpp_stage=entry[STAGE],
        order=entry["call_id"],
        expected=_number(entry["expected"]),
    )


def _run_finding(entry: Mapping[str, Any]) -> Mark:
    name, value = str(entry.get("name", "")), _number(entry["value"])
    mark = Mark(str(entry.get("rule", "")), "run", name, "value", value, entry["step"], entry["rank"])
    text = str(entry.get("message") or entry.get("text") or "")
    return mark._replace(message=text, expected=_number(entry["expected"]), row=name)


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def chosen(findings: Iterable[Mark], wanted: Mapping[str, Any]) -> list[Mark]:
    """Return the findings that have the fields in ``wanted``, and a step from ``from`` to ``to``."""
    first, last = wanted.get("from"), wanted.get("to")
    same = {name: value for name, value in wanted.items() if name in Mark._fields and value is not None}
    return [
        each
        for each in findings
        if all(getattr(each, name) == value for name, value in same.items())
        and (first is None or each.step >= first)
        and (last is None or each.step <= last)
    ]
