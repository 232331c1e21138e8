"""Diagnosis from the monitor's findings alone: this module knows nothing of the injected fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from probe.core.naming import row_name
from probe.core.records import Finding
from probe.core.rules.causal_order import causal_order
from probe.core.rules.evaluate import diagnose, explain, module_of


class FirstBad(NamedTuple):
    """First finding in causal order, and those that followed."""

    first: Finding
    module: str
    """First bad layer."""
    row: str
    """Name of the tensor in CSV files."""
    sentence: str
    later: list[Finding]
    """First finding at each of the next places, in causal order."""
    by_rule: dict[str, int]
    """Number of findings of each rule."""


def name_first_bad(findings: Iterable[Finding], follow: int = 5) -> FirstBad | None:
    """Diagnosis of a run, or None if nothing was found.

    Args:
        follow: number of later places to return.
    """
    ordered = sorted(findings, key=causal_order)
    first = diagnose(ordered)
    if first is None:
        return None
    places = {(finding.signal, finding.key): finding for finding in reversed(ordered)}
    later = sorted(places.values(), key=causal_order)[1:]
    by_rule = dict(Counter(finding.rule for finding in ordered))
    return FirstBad(first, module_of(first), row_name(first.key), explain(first), later[:follow], by_rule)
