"""Rules applied to the batches of a step; their findings in causal order and as sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import isfinite, isinf, isnan

from probe.core.naming import row_name, signal_of
from probe.core.records import Batch, Finding, Key
from probe.core.rules import Rule, about
from probe.core.rules.causal_order import causal_order


def find(
    rules: Sequence[Rule], batches: Iterable[Batch], failed: Callable[[Rule, Exception], None] | None = None
) -> list[Finding]:
    """What ``rules`` find in one step, in causal order.

    Every rule sees every batch; of several that match one (signal, key, op) the first in ``rules`` is reported.

    Args:
        failed: told of a rule that raised, whose findings in that batch are lost; without it the exception is raised.
    """
    first: dict[tuple[str, Key, str], Finding] = {}
    for batch in batches:
        for rule in rules:
            for finding in _judge(rule, batch, failed):
                first.setdefault((finding.signal, finding.key, finding.op), finding)
    return sorted(first.values(), key=causal_order)


def _judge(rule: Rule, batch: Batch, failed: Callable[[Rule, Exception], None] | None) -> list[Finding]:
    try:
        return list(rule.judge(batch))
    except Exception as error:
        if failed is None:
            raise
        failed(rule, error)
        return []


def diagnose(findings: Iterable[Finding]) -> Finding | None:
    """The first bad thing of a run so far, or None if there is none."""
    return min(findings, key=causal_order, default=None)


def module_of(finding: Finding) -> str:
    """The module of an activation, or the one that a parameter belongs to; the root module is ``""``."""
    key = finding.key
    return key.name if key.part else key.name.rpartition(".")[0]


def explain(finding: Finding) -> str:
    """The finding as a sentence, such as ``Spike at step 3: norm of fc.weight (weight gradient ...) is ...``."""
    what = word(finding.rule, finding.op, finding.value)
    micro = f", micro step {finding.key.micro_step}" if finding.micro_stepped else ""
    meaning = signal_of(finding.signal).meaning
    return (
        f"{what} at step {finding.step}{micro}: {finding.op} of {row_name(finding.key)} ({meaning}) "
        f"in {_module(finding)} is {finding.value:.6g}{_against(finding)}."
    )


def _module(finding: Finding) -> str:
    return f"module {module_of(finding)}" if module_of(finding) else "the root module"


def word(rule: str, op: str, value: float | None) -> str:
    """What is wrong with a number, in a word or two: ``NaN``, ``Inf``, ``Spike``, ...

    Args:
        rule: the one that found it; empty if none did.
        value: None if it is not known.
    """
    if op == "nans" or (value is not None and isnan(value)):
        return "NaN"
    if op == "infs" or (value is not None and isinf(value)):
        return "Inf"
    return about(rule).title or rule.removeprefix("Anomaly") or "Finding"


def _against(finding: Finding) -> str:
    if isnan(finding.expected):
        return ""
    if not isfinite(finding.value) or finding.expected == 0:
        return f", expected {finding.expected:.6g}"
    bound = "threshold" if finding.rule == "AnomalyNan" else "expected"
    return f", {abs(finding.value / finding.expected):.4g} times the {bound} {finding.expected:.6g}"
