"""JSON of an analysis: for ``--json``, and for ``anomaly_analyse.json``."""

from __future__ import annotations

from typing import Any

from probe.core.analysis.diagnosis.analyse import Analysis, IncidentDiagnosis
from probe.core.analysis.diagnosis.causality import Cause
from probe.core.analysis.diagnosis.extent import counted
from probe.core.analysis.diagnosis.located_finding import Located
from probe.core.analysis.diagnosis.topology import Topology
from probe.core.naming import cell_name, tag
from probe.core.storage.anomaly_json import in_json


def as_json(analysis: Analysis) -> dict[str, Any]:
    """Export an analysis whole. NaN and the infinities, which JSON lacks, are texts."""
    return {
        "run": analysis.run.name,
        "ranks": list(analysis.run.ranks),
        "missing_ranks": list(analysis.run.missing),
        "judged": analysis.extent._asdict(),
        "run_found": {str(rank): number for rank, number in counted(analysis.run).items()},
        "findings": analysis.number,
        "diagnosis": _of(analysis.diagnosis, analysis.topology) if analysis.diagnosis else None,
        "others": [_of(diagnosis, analysis.topology) for diagnosis in analysis.others],
        "kept": [entry(located, cause, analysis.topology) for located, cause in analysis.findings()],
        "notes": list(analysis.notes),
        "problems": [str(problem) for problem in analysis.problems.kept],
        "skipped": analysis.problems.skipped,
    }


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
        "first_step": incident.first,
        "last_step": incident.last,
        "findings": incident.number,
        "by_rank": {str(rank): number for rank, number in sorted(incident.by_rank.items())},
        "by_rule": dict(sorted(incident.by_rule.items())),
    }


def entry(located: Located, cause: Cause, topology: Topology) -> dict[str, Any]:
    """Finding with the fields of ``anomaly.json``, then those that the analysis adds."""
    finding = located.finding
    return {
        "rank": finding.rank,
        "step": finding.step,
        "micro_step": finding.key.micro_step,
        "pp_stage": located.pp_stage,
        "vpp_stage": finding.key.stage,
        "call_id": _call(located),
        "tag_name": tag(finding.signal, finding.key, finding.rank, finding.micro_stepped),
        "message": finding.message,
        "group_mates": list(topology.mates(finding.rank)),
        "cause": cause.value,
        "began": located.began,
        "rule": finding.rule,
        "signal": finding.signal,
        "name": cell_name(finding.key),
        "op": finding.op,
        "value": in_json(finding.value),
        "expected": in_json(finding.expected),
        "live": located.live,
    }


def key_of_entry(located: Located) -> str:
    """Key of an entry in ``anomaly_analyse.json``."""
    finding = located.finding
    where = tag(finding.signal, finding.key, finding.rank, finding.micro_stepped)
    return f"{where}_step_{finding.step}_call_{_call(located)}_{finding.op}"


def _call(located: Located) -> int:
    return located.call if located.call >= 0 else located.finding.order
