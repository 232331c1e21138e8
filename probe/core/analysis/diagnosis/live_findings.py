"""Findings that the run itself dumped, matched with those of its files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from probe.core.analysis.diagnosis.evaluate import EvaluatedRank
from probe.core.analysis.diagnosis.located_finding import Located
from probe.core.records import Finding
from probe.core.storage.anomaly_json import Entry, rank_folders, read
from probe.core.storage.anomaly_runs import belongs
from probe.core.storage.directories import RecordedRun
from probe.core.storage.layout import cell_name, key_of
from probe.core.storage.problems import Problems

Row = tuple[int, int, str, str, int]
"""Row of a file: rank, step, signal, name and micro step."""
MOST = 100
"""Most findings of one rank that are kept although its files do not have them."""


@dataclass
class LiveFindings:
    """Additions by ``anomaly.json`` of all ranks."""

    calls: dict[Row, int] = field(default_factory=dict)
    """Positions in the order of execution, for rows with a finding in the files too."""
    mates: dict[int, list[int]] = field(default_factory=dict)
    """Pipeline groups by rank."""
    live: list[Located] = field(default_factory=list)
    """Findings of this run that its files do not have: of rules that cannot judge files, or of steps missing there."""
    doubtful: list[Located] = field(default_factory=list)
    """Findings as in ``live``, from files of older versions, which do not name the run of a finding."""


def dumped(
    root: Path,
    run: RecordedRun,
    judged: Mapping[int, EvaluatedRank],
    rules: Collection[str],
    stage: Callable[[int], int],
    wanted: Collection[int],
    problems: Problems,
) -> LiveFindings:
    """Read the findings that ``run`` has dumped, and those that it may have dumped.

    Args:
        rules: names of the rules that have judged the files; only their findings there count.
        wanted: steps that count; all if empty.
    """
    result, is_own = LiveFindings(), belongs(run)
    if not rank_folders(root):
        return result
    rows = {_row(located.finding) for each in judged.values() for episode in each.episodes for located in episode.kept}
    kept: dict[int, int] = {}
    for _, entry in read(root, problems):
        own = is_own(entry)
        if own is False:
            continue
        if len(entry.group_mates) > 1:
            result.mates.setdefault(entry.rank, entry.group_mates)
        rank = judged.get(entry.rank)
        if rank is None or (wanted and entry.step not in wanted):
            continue
        row = entry.rank, entry.step, entry.signal, entry.row, entry.micro_step
        if row in rows:
            result.calls[row] = entry.call_id
            if not entry.rule:
                continue
        within = rank.first_step <= entry.step <= rank.last_step
        is_new = entry.rule not in rules if within else own or not rank.sampled
        if is_new and kept.setdefault(entry.rank, 0) < MOST:
            kept[entry.rank] += 1
            (result.live if own else result.doubtful).append(_located(entry, stage(entry.rank)))
    return result


def call_of(located: Located, calls: Mapping[Row, int]) -> int:
    """LiveFindings position of a finding's row; -1 if there is none."""
    return calls.get(_row(located.finding), -1)


def _row(finding: Finding) -> Row:
    return finding.rank, finding.step, finding.signal, cell_name(finding.key), finding.key.micro_step


def _located(entry: Entry, pp_stage: int) -> Located:
    value, expected = entry.numbers()
    key = key_of(entry.signal, entry.row, entry.micro_step, entry.call, entry.vpp_stage)
    finding = Finding(
        rule=entry.rule or "unknown",
        signal=entry.signal,
        key=key,
        op=entry.op,
        value=value,
        expected=expected,
        step=entry.step,
        rank=entry.rank,
        order=entry.call_id,
        message=entry.message,
        micro_stepped=entry.micro_stepped,
    )
    return Located(finding, entry.step, pp_stage, live=True, call=entry.call_id)
