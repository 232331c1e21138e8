"""Collectives that carried NaN or Inf."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from probe.core.analysis.diagnosis.located_finding import Located
from probe.core.moments import OPS
from probe.core.rules.comm_nan import AnomalyCommNan
from probe.core.storage.duckdb_reader import Rows
from probe.core.storage.layout import group_of
from probe.core.storage.sql import quoted

Carried = tuple[frozenset[int], frozenset[int]]
"""Ranks that sent NaN or Inf, and ranks that received it."""


def exchanged(rows: Rows, steps: Collection[int]) -> dict[int, list[Carried]]:
    """By step, the senders and receivers in each group of ranks whose rows of communication hold NaN or Inf."""
    bad = _condition(rows)
    if not bad or not steps:
        return {}
    listed = ", ".join(str(int(step)) for step in sorted(steps))
    found = rows.connection.execute(
        f"SELECT DISTINCT step, rank, name, {bad} AS bad FROM {rows.view('other')} "  # noqa: S608 - our own words
        f"WHERE step IN ({listed}) AND ({bad} OR name LIKE '%.pre')"
    ).fetchall()
    sent: dict[tuple[int, frozenset[int]], set[int]] = {}
    received: dict[tuple[int, frozenset[int]], set[int]] = {}
    for step, rank, name, is_bad in found:
        group = group_of(name)
        own = sent.setdefault((step, group), set()) if name.endswith(".pre") else None
        if is_bad:
            (received.setdefault((step, group), set()) if own is None else own).add(rank)
    carried: dict[int, list[Carried]] = {}
    for (step, group), ranks in received.items():
        # if no inputs were recorded, any rank of the group may have sent it
        origins = sent.get((step, group), set(group))
        carried.setdefault(step, []).append((frozenset(origins), frozenset(ranks)))
    return carried


def _condition(rows: Rows) -> str:
    """SQL that is true of rows with NaN or Inf; empty if no column shows it."""
    if "other" not in rows.signals:
        return ""
    ops = [op for op in rows.numbers("other") if op in OPS and op != "id"]
    counts = [f"coalesce({quoted(op)} > 0, false)" for op in ops if op in ("nans", "infs")]
    values = [f"NOT coalesce(isfinite({quoted(op)}), true)" for op in ops if op in ("norm", "sum", "mean")]
    # a minimum without elements is NaN and means nothing: a row of shape [0]
    return f"(coalesce(shape, '') NOT LIKE '[0%' AND ({' OR '.join([*counts, *values])}))" if counts or values else ""


def senders(findings: Iterable[Located]) -> Mapping[int, frozenset[int]]:
    """By step, the ranks that sent NaN or Inf without having received any, as ``AnomalyCommNan`` reported."""
    found: dict[int, set[int]] = {}
    for located in findings:
        if located.finding.rule == AnomalyCommNan.__name__:
            found.setdefault(located.began, set()).add(located.rank)
    return {step: frozenset(ranks) for step, ranks in found.items()}
