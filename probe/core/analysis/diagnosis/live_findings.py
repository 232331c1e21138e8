"""Findings that rules made while the run went on, from ``anomaly.json`` of all ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import nan

from probe.core.analysis.diagnosis.evaluate import EvaluatedRank
from probe.core.analysis.diagnosis.located_finding import Located
from probe.core.analysis.diagnosis.topology import Topology
from probe.core.language import message
from probe.core.messages import plural
from probe.core.records import Finding
from probe.core.storage.anomaly_json import Entry, rank_folders, read
from probe.core.storage.anomaly_runs import belongs
from probe.core.storage.directories import RecordedRun, find, place
from probe.core.storage.layout import cell_name, key_of
from probe.core.storage.location import Place
from probe.core.storage.problems import Problems

Row = tuple[int, int, str, str, int]
"""Row of a file: rank, step, signal, name and micro step."""
MOST = 100
"""Most findings of one rank that are kept although its files do not have them."""


@dataclass
class LiveFindings:
    """Additions of the files of findings to those that the rows give."""

    calls: dict[Row, int] = field(default_factory=dict)
    """Positions in the order of execution, for rows with a finding in the files too."""
    mates: dict[int, list[int]] = field(default_factory=dict)
    """Pipeline groups by rank."""
    live: list[Located] = field(default_factory=list)
    """Findings of this run that its files do not have: of rules that cannot judge files, or of steps missing there."""

    def number_calls(self, judged: Sequence[EvaluatedRank]) -> None:
        """Give the findings of the rows their positions in the order of execution."""
        for episode in (episode for rank in judged for episode in rank.episodes):
            episode.kept = [
                located._replace(call=self.calls.get(_row(located.finding), -1)) for located in episode.kept
            ]


def live_findings(
    root: Place,
    run: RecordedRun,
    judged: Mapping[int, EvaluatedRank],
    rules: Collection[str],
    topo: Topology,
    steps: Collection[int],
    problems: Problems,
) -> LiveFindings:
    """Read the findings that ``run`` has dumped.

    Those of earlier runs lie in the same files: if there are several runs, a finding that does not name its run, as in
    files of older versions, is taken only if the files of this run confirm it.

    Args:
        rules: names of the rules that have judged the files; only their findings there count.
        steps: those that count; all if empty.
    """
    inside, result, doubtful = place(root), LiveFindings(), list[Located]()
    dump = inside.parent if inside in [directory.path for directory in run.directories] else inside
    if not rank_folders(dump):
        return result
    episodes = (episode for rank in judged.values() for episode in rank.episodes)
    rows = {_row(located.finding) for episode in episodes for located in episode.kept}
    is_own, numbers = belongs(run), Counter[int]()
    for _, entry in read(dump, problems):
        if (is_of_run := is_own(entry)) is False:
            continue
        if len(entry.group_mates) > 1:
            result.mates.setdefault(entry.rank, entry.group_mates)
        rank = judged.get(entry.rank)
        if rank is None or (steps and entry.step not in steps):
            continue
        row = entry.rank, entry.step, entry.signal, entry.row, entry.micro_step
        if row in rows:
            result.calls[row] = entry.call_id
        within, rule = rank.first_step <= entry.step <= rank.last_step, entry.judgement.rule
        is_new = rule not in rules if within else is_of_run or not rank.sampled
        if is_new and (rule or row not in rows) and numbers[entry.rank] < MOST:
            numbers[entry.rank] += 1
            (result.live if is_of_run else doubtful).append(_located(entry, topo.stage(entry.rank)))
    if len(find(dump, Problems())) == len(run.directories):
        result.live += doubtful
    elif doubtful:
        problems.add(root, _left_out(len(doubtful)), skipped=False)
    return result


def _left_out(number: int) -> str:
    text = plural(
        number,
        "{number} finding that its rules made while it ran may belong to another run: left out",
        "{number} findings that its rules made while it ran may belong to another run: left out",
    )
    return message(text, number=number)


def _row(finding: Finding) -> Row:
    """Return the row of a file that a finding is about."""
    return finding.rank, finding.step, finding.signal, cell_name(finding.key), finding.key.micro_step


def _located(entry: Entry, pp_stage: int) -> Located:
    rule, op, value, expected = entry.judgement
    key = key_of(entry.signal, entry.row, entry.micro_step, entry.call, entry.vpp_stage)
    finding = Finding(
        rule=rule or "unknown",
        signal=entry.signal,
        key=key,
        op=op,
        value=nan if value is None else value,
        expected=nan if expected is None else expected,
        step=entry.step,
        rank=entry.rank,
        order=entry.call_id,
        message=entry.message,
        micro_stepped=entry.micro_stepped,
    )
    return Located(finding, entry.step, pp_stage, live=True, call=entry.call_id)
