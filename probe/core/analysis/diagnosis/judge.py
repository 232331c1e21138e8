"""Judging of a piece of ranks, and what of its findings is given back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from probe.core.analysis.diagnosis.evaluate import EvaluatedRank, RankEvaluator, configured, ops_of
from probe.core.analysis.diagnosis.located_finding import EXCHANGE, FORWARD, Located
from probe.core.analysis.diagnosis.passes import Passes
from probe.core.analysis.diagnosis.topology import sharers, topology
from probe.core.records import Key
from probe.core.rules.comm_nan import AnomalyCommNan
from probe.core.storage.directories import RankDirectory
from probe.core.storage.duckdb_reader import Rows
from probe.core.storage.manifest import Manifest

FEW = 256
"""Ranks of a run of which all findings that a rank keeps are given back; of more ranks only those that can matter."""


class PieceFindings(NamedTuple):
    """Findings of the ranks of a piece."""

    judged: list[EvaluatedRank]
    rules: frozenset[str]
    """Names of the rules that have judged."""
    sharers: dict[int, tuple[int, ...]]
    """Ranks with which a rank computes on parts of the same tensors."""


def judge(
    passes: Passes, steps: Sequence[int], progress: Callable[[str], None], sought: Sequence[int] = ()
) -> PieceFindings:
    """Findings of all ranks of a run.

    Args:
        steps: those whose findings count; all if empty.
        sought: steps from which the cause of what was found otherwise is sought.
    """
    whole, ops = len(passes.run.ranks) <= FEW, tuple(ops_of(passes.rows))
    work = _Judging(tuple(steps), ops, whole, tuple(sought))
    function = partial(work, progress=progress) if passes.engine is None else work
    judged, rules, shared, coverages = [], set[str](), dict[int, tuple[int, ...]](), _Known()
    for evaluated in passes.over_ranks(function):
        judged += [coverages.of(rank) for rank in evaluated.judged]
        rules |= evaluated.rules
        shared.update({rank: coverages.ranks(ranks) for rank, ranks in evaluated.sharers.items()})
    return PieceFindings(judged, frozenset(rules), shared)


def slim(directory: RankDirectory) -> RankDirectory:
    """Return the directory of a rank with what judging needs of its manifest."""
    manifest = directory.manifest
    stage = topology([directory]).stage(directory.rank)
    alert = {name: manifest.config[name] for name in ("alert",) if name in manifest.config}
    return directory._replace(manifest=Manifest(config=alert, pp_stage=stage))


@dataclass(frozen=True)
class _Judging:
    """Judging of the ranks of a piece."""

    wanted: tuple[int, ...]
    ops: tuple[str, ...]
    whole: bool
    """True if all findings that a rank keeps are given back."""
    sought: tuple[int, ...] = ()
    """Steps from which the cause of what was found otherwise is sought."""

    def __call__(self, rows: Rows, progress: Callable[[str], None] = lambda _: None) -> PieceFindings:
        judged, rules = [], set[str]()
        latest = {directory.rank: directory for directory in rows.directories}
        places = topology(rows.directories)
        for rank, directory in latest.items():
            progress(f"judging rank {rank}")
            alert = configured(directory.manifest, directory.path, rows.problems)
            rules |= {rule.rule_name for rule in alert.rules}
            evaluated = RankEvaluator(rows, rank, alert, self.ops, places.stage(rank)).run(self.wanted, self.sought)
            judged.append(evaluated if self.whole else reduced(evaluated))
        return PieceFindings(judged, frozenset(rules), sharers(rows))


def reduced(rank: EvaluatedRank) -> EvaluatedRank:
    """Drop the findings of a rank that can change no story: they stay counted."""
    for episode in rank.episodes:
        episode.kept = [
            located for located, place in zip(episode.kept, _matter(rank, episode.kept), strict=True) if place
        ]
    return rank


def _matter(rank: EvaluatedRank, findings: Sequence[Located]) -> list[bool]:
    """Mark the findings that can matter: the first two, and the first two with NaN or Inf, of each way in which the end
    of the run may explain them; the first of each phase, with all findings of its row; the first activation of a later
    step; and the senders of NaN."""
    seen: dict[tuple[object, ...], int] = {}
    numbers, rows, forward = set[int](), set[object](), set[int]()
    for place in sorted(range(len(findings)), key=lambda n: findings[n].order):
        located = findings[place]
        way = _way(rank, located)
        asked: list[tuple[tuple[object, ...], int]] = [((way,), 2), ((way, "phase", located.phase), 1)]
        if located.is_non_finite:
            asked.append(((way, "bad"), 2))
        if located.phase == FORWARD and (located.began in forward or len(forward) < 2):
            forward.add(located.began)
            asked.append((("forward", located.began), 1))
        if located.finding.rule == AnomalyCommNan.__name__:
            asked.append((("sent", located.began), 1))
        for key, most in asked:
            seen[key] = seen.get(key, 0) + 1
            if seen[key] <= most:
                numbers.add(place)
                rows.add(located.place)
    return [n in numbers or located.place in rows for n, located in enumerate(findings)]


def _way(rank: EvaluatedRank, located: Located) -> int:
    """Explanation of a finding by the end of the run: 0 for none, 1 for certain, 2 if another rank was lost."""
    if not rank.partial or located.finding.step != rank.last_step:
        return 0
    if not located.is_non_finite:
        return 1
    return 2 if located.phase >= EXCHANGE else 0


class _Known:
    """Keys and groups of ranks, each kept once for all ranks."""

    def __init__(self) -> None:
        self._keys: dict[Key, Key] = {}
        self._ranks: dict[tuple[int, ...], tuple[int, ...]] = {}

    def of(self, rank: EvaluatedRank) -> EvaluatedRank:
        """``rank`` with such keys and groups."""
        for episode in rank.episodes:
            episode.kept = list(map(self._located, episode.kept))
        return rank

    def ranks(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        """The group that was there first."""
        return self._ranks.setdefault(ranks, ranks)

    def _located(self, located: Located) -> Located:
        key = self._keys.setdefault(located.finding.key, located.finding.key)
        return located._replace(finding=located.finding._replace(key=key), ranks=self.ranks(located.ranks))
