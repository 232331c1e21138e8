"""Report about a trial of a program: what its prechecks and the checks of its loop have found, in one list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from probe.core.analysis.diagnosis.analyse import Analysis
from probe.core.analysis.diagnosis.export import graded
from probe.core.checks import CHECKS, CheckFinding
from probe.core.checks.check import GRADES
from probe.core.prechecks import PRECHECKS


class TrialFinding(NamedTuple):
    """Finding of a trial."""

    grade: str
    kind: str
    where: str
    ranks: tuple[int, ...]
    step: int
    text: str
    evidence: Mapping[str, float]
    remedy: str

    def as_json(self) -> dict[str, Any]:
        """Return the finding with the fields that ``probe anomalies --json`` has, and the remedy."""
        rank = self.ranks[0] if len(self.ranks) == 1 else list(self.ranks)
        fields = {"grade": self.grade, "kind": self.kind, "where": self.where, "rank": rank, "step": self.step}
        return {**fields, "text": self.text, "evidence": dict(self.evidence), "remedy": self.remedy}


def trial_findings(
    of_ranks: Mapping[int, Sequence[CheckFinding]], between: Sequence[CheckFinding], analysis: Analysis | None
) -> list[TrialFinding]:
    """Return everything that was found, by grade; equal findings of several ranks are one.

    Args:
        of_ranks: findings of prechecks, by rank.
        between: findings of prechecks that compare ranks.
        analysis: that of the files of the run; None if there are none.
    """
    ranks: dict[tuple[str, ...], tuple[CheckFinding, list[int]]] = {}
    for rank, findings in of_ranks.items():
        for finding in findings:
            key = (finding.check, finding.grade, *finding.where)
            ranks.setdefault(key, (finding, []))[1].append(rank)
    results = [_of_check(finding, tuple(who)) for finding, who in ranks.values()]
    results += [_of_check(finding, finding.ranks) for finding in between]
    if analysis is not None:  # of a kind that both judge, prechecks have seen more
        kinds = {finding.kind for finding in results}
        results += [finding for finding in _of_analysis(analysis) if finding.kind not in kinds]
    return sorted(results, key=lambda finding: GRADES.index(finding.grade))


def remedy_of(kind: str) -> str:
    """Return the advice about a kind of finding; an empty text if there is none."""
    check = PRECHECKS.get(kind) or CHECKS.get(kind)
    return "" if check is None else check.remedy


def _of_check(finding: CheckFinding, ranks: tuple[int, ...]) -> TrialFinding:
    where = ", ".join(finding.where)
    remedy = remedy_of(finding.check)
    return TrialFinding(
        finding.grade, finding.check, where, ranks, finding.since, finding.text, finding.evidence, remedy
    )


def _of_analysis(analysis: Analysis) -> list[TrialFinding]:
    checks = [_of_check(finding, ranks) for ranks, finding in analysis.of_checks]
    kinds = {finding.kind for finding in checks}
    rows = [entry for entry in graded(analysis) if "found" not in entry]
    return checks + [
        TrialFinding(entry["grade"], entry["kind"], entry["where"] or "", (entry["rank"],), entry["step"], "", {}, "")
        for entry in rows
        if entry["kind"] not in kinds
    ]
