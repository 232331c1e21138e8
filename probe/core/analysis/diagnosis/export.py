"""JSON of an analysis: for ``--json``, and for ``anomaly_analyse.json``."""

from __future__ import annotations

from typing import Any

from probe.core.analysis.diagnosis.analyse import Analysis, IncidentDiagnosis
from probe.core.analysis.diagnosis.causality import Cause
from probe.core.analysis.diagnosis.check_findings import check_entries
from probe.core.analysis.diagnosis.evaluate import counted
from probe.core.analysis.diagnosis.explain import kind_of_finding
from probe.core.analysis.diagnosis.located_finding import Located
from probe.core.analysis.diagnosis.run_findings import RankRunFinding
from probe.core.analysis.diagnosis.run_verdict import grade_of, verdict_about
from probe.core.analysis.diagnosis.topology import Topology
from probe.core.naming import tag
from probe.core.records import Finding
from probe.core.storage.anomaly_json import documented_fields, entry_key, in_json, value_fields
from probe.core.storage.layout import cell_name


def as_json(analysis: Analysis) -> dict[str, Any]:
    """Export an analysis whole. NaN and the infinities, which JSON lacks, are texts."""
    return {
        "run": analysis.run.name,
        "ranks": list(analysis.run.ranks),
        "missing_ranks": list(analysis.run.missing),
        "judged": analysis.extent._asdict(),
        "run_found": {str(rank): number for rank, number in counted(analysis.run).items()},
        "number": analysis.number,
        "verdict": verdict_about(analysis).as_json(),
        "findings": graded(analysis),
        "diagnosis": _of(analysis.diagnosis, analysis.topology) if analysis.diagnosis else None,
        "others": [_of(diagnosis, analysis.topology) for diagnosis in analysis.others],
        "kept": [entry(located, cause, analysis.topology) for located, cause in analysis.findings()],
        "run_numbers": [
            {"rank": of_number.rank, **of_number.finding._asdict()}
            | {"value": in_json(of_number.finding.value), "expected": in_json(of_number.finding.expected)}
            for of_number in analysis.of_run
        ],
        "notes": list(analysis.notes),
        "problems": [str(problem) for problem in analysis.problems.kept],
        "skipped": analysis.problems.skipped,
    }


def graded(analysis: Analysis) -> list[dict[str, Any]]:
    """Return everything that was found, with grade, kind, place, rank and the step in which it began.

    The order is that of steps; within a step, rows in the order of cause come before numbers of the run and
    findings of the checks.
    """
    rows = [
        _of_row(located, cause, diagnosis.spoilt)
        for diagnosis in analysis.diagnoses
        for located, cause in diagnosis.incident.findings
    ]
    of_run = [*map(_of_number, analysis.of_run), *check_entries(analysis.of_checks)]
    return sorted([*rows, *of_run], key=lambda entry: entry["step"])


def _of_row(located: Located, cause: Cause, spoilt: int | None) -> dict[str, Any]:
    return {
        "grade": grade_of(located, cause, spoilt),
        "kind": kind_of_finding(located).value,
        "where": cell_name(located.finding.key),
        "rank": located.rank,
        "step": located.began,
    }


def _of_number(on_rank: RankRunFinding) -> dict[str, Any]:
    finding = on_rank.finding
    grade = "note" if finding.severity == "info" else finding.severity
    return {"grade": grade, "kind": finding.rule, "where": finding.name, "rank": on_rank.rank, "step": finding.step}


def _of(diagnosis: IncidentDiagnosis, topology: Topology) -> dict[str, Any]:
    incident, shown = diagnosis.incident, diagnosis.evidence
    return {
        "kind": diagnosis.kind.value,
        "text": diagnosis.text,
        "first": entry(diagnosis.first, Cause.initiating, topology),
        "ranks": list(diagnosis.ranks),
        "ambiguous_with": [entry(rival, Cause.initiating, topology) for rival in diagnosis.rivals],
        "evidence": {
            "file": shown.file,
            "op": shown.op,
            "values": [[step, in_json(value)] for step, value in shown.values],
        },
        "spoilt": diagnosis.spoilt,
        "onset": None if diagnosis.onset is None else diagnosis.onset.as_json(),
        "first_step": incident.first,
        "last_step": incident.last,
        "findings": incident.number,
        "by_rank": {str(rank): number for rank, number in sorted(incident.by_rank.items())},
        "by_rule": dict(sorted(incident.by_rule.items())),
    }


def entry(located: Located, cause: Cause, topology: Topology) -> dict[str, Any]:
    """Finding with the fields of ``anomaly.json``, then those that the analysis adds."""
    finding = located.finding
    mates = topology.mates(finding.rank)
    return {
        **documented_fields(finding, _tag(finding), _call(located), located.pp_stage, mates),
        "cause": cause.value,
        "began": located.began,
        **value_fields(finding),
        "live": located.live,
    }


def key_of_entry(located: Located) -> str:
    """Key of an entry in ``anomaly_analyse.json``."""
    finding = located.finding
    return entry_key(_tag(finding), finding.step, _call(located), finding.op)


def _tag(finding: Finding) -> str:
    return tag(finding.signal, finding.key, finding.rank, finding.micro_stepped)


def _call(located: Located) -> int:
    return located.call if located.call >= 0 else located.finding.order
