"""Verdict about a run from its analysis: the one that the run itself has printed, as far as its files show it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from math import nan

from probe.core.analysis.diagnosis.analyse import Analysis, IncidentDiagnosis
from probe.core.analysis.diagnosis.causality import Cause
from probe.core.analysis.diagnosis.explain import NEXT, beginning
from probe.core.analysis.diagnosis.located_finding import Located
from probe.core.checks.check import Grade
from probe.core.judged_findings import is_located, of_check, of_number
from probe.core.language import capitalized, joined, message
from probe.core.rules.evaluate import HUGE, judged
from probe.core.storage.duckdb_reader import Rows
from probe.core.storage.layout import NAME, STEP, cell_name
from probe.core.storage.problems import Problems
from probe.core.storage.table_files import TableFile
from probe.core.verdict import JudgedFinding, Looked, Verdict, verdict_of
from probe.core.verdict_picture import Cell, VerdictPicture, card_lines, column_of, picture_from

EARLIER, LATER = 200, 50
"""Steps before the first bad one, and after it, that are read for a picture."""


def verdict_about(analysis: Analysis) -> Verdict:
    """Return the verdict about a run: the first critical of its incidents, numbers and checks, else the first
    warning."""
    alone = len(analysis.run.ranks) == 1
    findings = [
        *(finding for diagnosis in analysis.diagnoses for finding in _of_incident(diagnosis, analysis)),
        *(of_number(on_rank.finding)._replace(ranks=() if alone else (on_rank.rank,)) for on_rank in analysis.of_run),
        *(of_check(on_rank.finding)._replace(ranks=() if alone else on_rank.ranks) for on_rank in analysis.of_checks),
    ]
    looked = Looked((analysis.extent.text,) if analysis.extent.rows else ())
    return verdict_of(findings, looked)


def card_about(verdict: Verdict, analysis: Analysis, files: str, blocks: bool, width: int) -> list[str]:
    """Return the card of a verdict, as :func:`probe.core.verdict_picture.card_lines`; empty if nothing was found."""
    if not verdict.kind:
        return []
    return card_lines(verdict, picture_about(verdict, analysis), files, blocks=blocks, width=width)


def picture_about(verdict: Verdict, analysis: Analysis) -> VerdictPicture | None:
    """Return the picture of a verdict from the files of the first rank that it names; None if they show nothing."""
    of_rank = [
        directory for directory in analysis.run.directories if not verdict.ranks or directory.rank == verdict.ranks[0]
    ]
    if not verdict.kind or not of_rank:
        return None
    since = verdict.since or 0
    # the analysis has reported what cannot be read
    with Rows([directory for directory in of_rank if directory.rank == of_rank[0].rank], Problems()) as rows:

        def cells(file: TableFile) -> Iterator[Cell]:
            columns, table = rows.read([file], since - EARLIER, since + LATER)
            column = column_of(columns)
            at = [columns.index(name) for name in (NAME, STEP, column) if name in columns]
            for row in table if len(at) == 3 else ():
                name, step, value = (row[index] for index in at)
                yield column, name, step, nan if value is None else value

        files = {
            signal: [(file.first, file) for n in range(len(rows.directories)) for file in rows.files_of(signal, n)]
            for signal in rows.signals
        }
        return picture_from(files, cells, verdict)


def grade_of(located: Located, cause: Cause, spoilt: int | None) -> Grade:
    """Return the grade of a finding about a row; a note if the end of the run explains it, or weights that an update of
    the step ``spoilt`` had spoilt."""
    follows = spoilt is not None and located.is_non_finite and located.began > spoilt
    if follows or cause is Cause.teardown:
        return "note"
    return "critical" if located.is_non_finite or abs(located.finding.value) >= HUGE else "warning"


def _of_incident(diagnosis: IncidentDiagnosis, analysis: Analysis) -> Iterator[JudgedFinding]:
    """Yield the finding that began an incident, and the first NaN or Inf that followed from another one."""
    yield _of_first(diagnosis, analysis)
    if not diagnosis.first.is_non_finite:
        pairs = (pair for pair in diagnosis.incident.findings if pair[0].is_non_finite)
        for located, cause in itertools.islice(pairs, 1):
            ranks = (located.rank,) if len(analysis.run.ranks) > 1 else ()
            finding = judged(located.finding)._replace(ranks=ranks, since=located.began)
            yield finding._replace(grade=grade_of(located, cause, diagnosis.spoilt))


def _of_first(diagnosis: IncidentDiagnosis, analysis: Analysis) -> JudgedFinding:
    first = diagnosis.first
    _, cause = diagnosis.incident.findings[0]
    clean = next(
        (rank.before.get(diagnosis.incident.first) for rank in analysis.judged if rank.rank == first.rank), None
    )
    gap = clean is not None and clean < first.began - 1
    located = not first.is_non_finite or is_located(first.phase, gap, analysis.extent.signals)
    return JudgedFinding(
        grade=grade_of(first, cause, diagnosis.spoilt),
        kind=diagnosis.kind.value,
        where=(cell_name(first.finding.key),),
        step=first.finding.step,
        since=first.began,
        text=joined(" ", _sentences(diagnosis)) if located else judged(first.finding).text,
        evidence={first.finding.op: first.finding.value},
        ranks=diagnosis.ranks if len(analysis.run.ranks) > 1 else (),
        remedy=message(NEXT.get(diagnosis.kind) or NEXT[first.phase]) if located else "",
        located=located,
        after=clean,
        onset=diagnosis.onset,
        signal=first.finding.signal,
    )


def _sentences(diagnosis: IncidentDiagnosis) -> Iterator[str]:
    yield beginning(diagnosis.first, diagnosis.ranks)
    if diagnosis.evidence.inputs:
        yield message("{sentence}.", sentence=capitalized(diagnosis.evidence.inputs))
