"""Verdict about a run from its analysis: the one that the run itself has printed, as far as its files show it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from probe.core.analysis.diagnosis.analyse import Analysis, IncidentDiagnosis
from probe.core.analysis.diagnosis.explain import NEXT, beginning
from probe.core.analysis.diagnosis.export import grade_of
from probe.core.judged_findings import of_check, of_number
from probe.core.language import capitalized, joined, message
from probe.core.storage.layout import cell_name
from probe.core.verdict import JudgedFinding, Looked, Verdict, verdict_of
from probe.core.verdict_picture import Picture, picture_of


def verdict_about(analysis: Analysis) -> Verdict:
    """Return the verdict about a run: the first critical of its incidents, numbers and checks, else the first
    warning."""
    findings = [
        *(_of_incident(diagnosis, analysis) for diagnosis in analysis.diagnoses),
        *(of_number(each.finding)._replace(ranks=(each.rank,)) for each in analysis.of_run),
        *(of_check(each.finding)._replace(ranks=each.ranks) for each in analysis.of_checks),
    ]
    looked = Looked((analysis.extent.text,) if analysis.extent.rows else ())
    return verdict_of(findings, looked)


def picture_about(verdict: Verdict, analysis: Analysis) -> Picture | None:
    """Return the picture of a verdict from the files of the first rank that it names; None if they show nothing."""
    for directory in analysis.run.directories:
        if isinstance(directory.path, Path) and (not verdict.ranks or directory.rank in verdict.ranks):
            with suppress(OSError, ValueError):  # the analysis has reported what cannot be read
                return picture_of(directory.path, verdict)
    return None


def _of_incident(diagnosis: IncidentDiagnosis, analysis: Analysis) -> JudgedFinding:
    first = diagnosis.first
    _, cause = diagnosis.incident.findings[0]
    clean = next((rank.before.get(diagnosis.incident.first) for rank in analysis.judged if rank.rank == first.rank), None)
    return JudgedFinding(
        grade=grade_of(first, cause, diagnosis.spoilt),
        kind=diagnosis.kind.value,
        where=(cell_name(first.finding.key),),
        step=first.finding.step,
        since=first.began,
        text=joined(" ", _sentences(diagnosis)),
        evidence={first.finding.op: first.finding.value},
        ranks=diagnosis.ranks if len(analysis.run.ranks) > 1 else (),
        remedy=message(NEXT.get(diagnosis.kind) or NEXT[first.phase]),
        after=clean,
        onset=diagnosis.onset,
    )


def _sentences(diagnosis: IncidentDiagnosis) -> Iterator[str]:
    yield beginning(diagnosis.first, diagnosis.ranks)
    if diagnosis.evidence.inputs:
        yield message("{sentence}.", sentence=capitalized(diagnosis.evidence.inputs))
