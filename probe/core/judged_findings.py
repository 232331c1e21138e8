"""Findings of checks, and of rules about numbers of the run, in the form of the verdict."""

from __future__ import annotations

import math

from probe.core.checks import CHECKS, CheckFinding
from probe.core.checks.check import Grade
from probe.core.rules import RULES
from probe.core.run_state.rules import RUN_RULES, RunFinding
from probe.core.verdict import JudgedFinding

BATCH = "Look at the batch of this step: its source, its preprocessing and its lengths."
"""Advice where the numbers that came in were wrong already."""


def of_check(finding: CheckFinding) -> JudgedFinding:
    """Return a finding of a check, or one between ranks, in the form of the verdict."""
    check = CHECKS.get(finding.check)
    return JudgedFinding(
        grade=finding.grade,
        kind=finding.check,
        where=tuple(finding.where),
        step=finding.step,
        since=finding.since,
        text=finding.text,
        evidence=dict(finding.evidence),
        ranks=tuple(finding.ranks),
        remedy=BATCH if any(map(_is_input, finding.where)) else check.remedy if check is not None else "",
        onset=finding.onset,
    )


def _is_input(place: str) -> bool:
    return place == "input" or place.endswith(".input")


def of_number(finding: RunFinding) -> JudgedFinding:
    """Return a finding of a rule about numbers of the run in the form of the verdict."""
    rule = RUN_RULES.get(finding.rule) or RULES.get(finding.rule)
    numbers = {finding.name: finding.value, "expected": finding.expected}
    if math.isnan(finding.expected):
        del numbers["expected"]
    grade: Grade = "note" if finding.severity == "info" else finding.severity
    title = rule.title if rule is not None else finding.rule
    return JudgedFinding(
        grade=grade,
        kind=title,
        where=(finding.name,),
        step=finding.step,
        since=finding.step,
        text=finding.message,
        evidence=numbers,
        located=math.isfinite(finding.value),  # else it shows here, and began in a layer
    )
