"""Evaluation of rules on the batches of a step; findings in causal order and as sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import inf, isfinite, isinf, isnan

from probe.core.checks.check import Grade
from probe.core.language import Message, message
from probe.core.naming import row_name, signal_of
from probe.core.records import Batch, Finding, Key
from probe.core.rules import Rule, about
from probe.core.rules.causal_order import causal_order
from probe.core.rules.skipped import is_evidence
from probe.core.verdict import NON_FINITE, OVERFLOW, JudgedFinding

HUGE = 1e30
"""Magnitude from which on a value is about to leave the range of float32."""


def find(
    rules: Sequence[Rule], batches: Iterable[Batch], failed: Callable[[Rule, Exception], None] | None = None
) -> list[Finding]:
    """Return the findings of ``rules`` in one step, in causal order.

    Every rule judges every batch that is evidence (see :mod:`probe.core.rules.skipped`); if several match one
    (signal, key, op), the first in ``rules`` is reported.

    Args:
        failed: called with a rule that raised, whose findings in that batch, or in that step if it judges all of it
            together, are lost; if None, the exception is raised.
    """
    first: dict[tuple[str, Key, str], Finding] = {}
    step = [batch for batch in batches if is_evidence(batch)]
    for finding in _in_order_of_batches(step, [_judge(rule, step, failed) for rule in rules]):
        first.setdefault((finding.signal, finding.key, finding.op), finding)
    return sorted(first.values(), key=causal_order)


Failed = Callable[[Rule, Exception], None]


def _judge(rule: Rule, batches: Sequence[Batch], failed: Failed | None) -> list[list[Finding]]:
    """Return the findings of one rule: a list, or one for each batch."""
    together = getattr(rule, "judge_step", None)
    if together is None or len({batch.signal for batch in batches}) < len(batches):
        return [_findings_of(rule, partial(rule.judge, batch), failed) for batch in batches]
    return [_findings_of(rule, partial(together, batches), failed)]


def _findings_of(rule: Rule, judge: Callable[[], Iterable[Finding]], failed: Failed | None) -> list[Finding]:
    try:
        return list(judge())
    except Exception as error:
        if failed is None:
            raise
        failed(rule, error)
        return []


def _in_order_of_batches(batches: Sequence[Batch], findings: Iterable[Iterable[Iterable[Finding]]]) -> list[Finding]:
    """Return the findings in the order of their batches, those of one batch in the order of the rules."""
    flat = [finding for of_rule in findings for some in of_rule for finding in some]
    if len(flat) < 2:
        return flat
    place = {batch.signal: n for n, batch in reversed([*enumerate(batches)])}
    return sorted(flat, key=lambda finding: place.get(finding.signal, len(place)))


def diagnose(findings: Iterable[Finding]) -> Finding | None:
    """First finding of a run so far in causal order; None if there is none."""
    return min(findings, key=causal_order, default=None)


def module_of(finding: Finding) -> str:
    """Module of an activation, or of a parameter; the root module is ``""``."""
    key = finding.key
    return key.name if key.part else key.name.rpartition(".")[0]


def explain(finding: Finding) -> str:
    """Return a sentence about a finding: ``Spike at step 3: norm of fc.weight (weight gradient ...) is ...``."""
    return f"{clause(finding)}."


def kind_and_grade(finding: Finding) -> tuple[str, Grade]:
    """Return kind and grade of a finding in the verdict."""
    kind = OVERFLOW if HUGE <= abs(finding.value) < inf else word(finding.rule, finding.op, finding.value)
    return kind, "critical" if kind in (*NON_FINITE, OVERFLOW) else "warning"


def judged(finding: Finding) -> JudgedFinding:
    """Return a finding in the form of the verdict, as far as its row alone shows it."""
    kind, grade = kind_and_grade(finding)
    return JudgedFinding(
        grade=grade,
        kind=kind,
        where=(row_name(finding.key),),
        step=finding.step,
        since=finding.step,
        text=clause(finding),
        evidence={finding.op: finding.value},
        signal=finding.signal,
    )


def clause(finding: Finding) -> Message:
    """Return the sentence without its full stop, for the language of its reader."""
    module = module_of(finding)
    micro = message(", micro step {number}", number=finding.key.micro_step) if finding.micro_stepped else ""
    return message(
        "{kind} at step {step}{micro}: {op} of {row} ({meaning}) in {module} is {value}",
        kind=message(word(finding.rule, finding.op, finding.value)),
        step=finding.step,
        micro=micro,
        op=finding.op,
        row=row_name(finding.key),
        meaning=message(signal_of(finding.signal).meaning),
        module=message("module {name}", name=module) if module else message("the root module"),
        value=_against(finding),
    )


def word(rule: str, op: str, value: float | None) -> str:
    """Return the name of an anomaly in a word or two: ``NaN``, ``Inf``, ``Spike``, ...

    Args:
        rule: name of the rule that found it; empty if none did.
        value: number in question; None if unknown.
    """
    if op == "nans" or (value is not None and isnan(value)):
        return "NaN"
    if op == "infs" or (value is not None and isinf(value)):
        return "Inf"
    return about(rule).title or rule.removeprefix("Anomaly") or "Finding"


def _against(finding: Finding) -> Message:
    """Return the value of a finding, with the one that it was compared with."""
    value, expected = finding.value, finding.expected
    if isnan(expected):
        return message("{value:.6g}", value=value)
    if not isfinite(value) or expected == 0:
        return message("{value:.6g}, expected {expected:.6g}", value=value, expected=expected)
    text = "{value:.6g}, {times:.4g} times the expected {expected:.6g}"
    if finding.rule == "AnomalyNan":
        text = "{value:.6g}, {times:.4g} times the threshold {expected:.6g}"
    return message(text, value=value, times=abs(value / expected), expected=expected)
