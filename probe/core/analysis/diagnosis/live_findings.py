"""What the run itself has dumped, put beside what its files say."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from probe.core.analysis.diagnosis.evaluate import Judged
from probe.core.analysis.diagnosis.located_finding import Located
from probe.core.records import Finding
from probe.core.storage.anomaly_json import Entry, rank_folders, read
from probe.core.storage.anomaly_runs import belongs
from probe.core.storage.directories import RecordedRun
from probe.core.storage.layout import cell_name, key_of
from probe.core.storage.problems import Problems

Row = tuple[int, int, str, str, int]
"""Rank, step, signal, name in files and micro step."""
MOST = 100
"""Findings of one rank that only the run itself made, which are kept."""


@dataclass
class Dumped:
    """What ``anomaly.json`` of all ranks adds."""

    calls: dict[Row, int] = field(default_factory=dict)
    """Positions in the order of execution, of rows that were found in the files too."""
    mates: dict[int, list[int]] = field(default_factory=dict)
    """Pipeline groups by rank."""
    live: list[Located] = field(default_factory=list)
    """Findings of this run that its files do not have: of rules that cannot judge files, or of steps that are not in
    them."""
    doubtful: list[Located] = field(default_factory=list)
    """As ``live``, from files of older versions, which do not say of which run a finding is."""


def dumped(
    root: Path,
    run: RecordedRun,
    judged: Mapping[int, Judged],
    rules: Collection[str],
    stage: Callable[[int], int],
    wanted: Collection[int],
    problems: Problems,
) -> Dumped:
    """What ``run`` has dumped, and what it may have.

    Args:
        rules: those that have judged the files: what they did not find there is no finding.
        wanted: steps that count; all if there are none.
    """
    result, is_own = Dumped(), belongs(run)
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
    """The dumped position of a finding's row; -1 if there is none."""
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
