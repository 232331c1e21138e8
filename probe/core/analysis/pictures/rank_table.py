"""Ranks of a run as arrays: their directories and stages, and the orders in which a page can show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from probe.core.analysis.pictures.cells import Whole
from probe.core.storage.directories import RankDirectory, RecordedRun
from probe.core.storage.manifest import DATA, Manifest

HOST = "host"
REPLICAS = ("data_and_context_parallel", DATA)
"""Groups of ranks that hold the same part of the model, the first that a manifest names."""


class RankAttribute(NamedTuple):
    """Something that ranks have in common with others."""

    title: str
    names: tuple[str, ...]
    """Different values as text, in the order in which they are shown."""
    of: Whole
    """For each rank the index of its value."""


class RankOrder(NamedTuple):
    """Order of lines, each of one or several consecutive ranks."""

    title: str
    lines: Whole
    """Lines in this order."""


@dataclass(frozen=True)
class RankTable:
    """Ranks of a run, ascending; it can be pickled, and has a few bytes a rank."""

    ranks: Whole
    first: Whole
    """Number of the first directory of each rank."""
    stages: Whole
    """Pipeline stage of each directory."""
    attributes: tuple[RankAttribute, ...]
    """Groups that ranks have in common, that of replicas last."""
    experts: bool = False
    """True if experts are spread over ranks, so that replicas hold different ones."""

    def numbers(self, directories: Sequence[RankDirectory]) -> list[int]:
        """Number of each of some ranks' directories among those of the run."""
        numbers: list[int] = []
        for n, directory in enumerate(directories):
            again = n > 0 and directories[n - 1].rank == directory.rank
            numbers.append(numbers[-1] + 1 if again else int(self.first[self.position(directory.rank)]))
        return numbers

    def position(self, rank: int) -> int:
        """Index of a rank."""
        return int(np.searchsorted(self.ranks, rank))

    def shares(self) -> dict[int, float]:
        """Share of the ranks that have been on each pipeline stage."""
        return {stage: len(self.ranks_of((stage,))) / len(self.ranks) for stage in np.unique(self.stages).tolist()}

    def ranks_of(self, stages: Sequence[int]) -> Whole:
        """Indices of the ranks that have been on any of the pipeline stages."""
        there = np.flatnonzero(np.isin(self.stages, stages))
        ranks: Whole = np.unique(np.searchsorted(self.first, there, side="right") - 1)
        return ranks

    def groups(self) -> Whole:
        """For each rank the group of ranks that hold the same part of the model."""
        return self.attributes[-1].of

    def orders(self, ranks_a_line: int = 1) -> list[RankOrder]:
        """Orders by rank, and by each attribute in which ranks differ, unless the ranks of a line differ in it."""
        number = -(-len(self.ranks) // ranks_a_line)
        found = [RankOrder("rank", np.arange(number))]
        for attribute in self.different():
            of = attribute.of[::ranks_a_line]
            if np.array_equal(np.repeat(of, ranks_a_line)[: len(self.ranks)], attribute.of):
                found.append(RankOrder(attribute.title, np.argsort(of, kind="stable")))
        return found

    def about(self, rank: int) -> dict[str, str]:
        """Values of the attributes of a rank in which ranks differ."""
        at = self.position(rank)
        return {attribute.title: attribute.names[int(attribute.of[at])] for attribute in self.different()}

    def different(self) -> list[RankAttribute]:
        """Attributes in which ranks differ."""
        return [attribute for attribute in self.attributes if len(attribute.names) > 1]


def rank_table(run: RecordedRun) -> RankTable:
    """Ranks of ``run``, with what their manifests say."""
    latest: dict[int, Manifest] = {}
    first: dict[int, int] = {}
    for n, directory in enumerate(run.directories):
        latest[directory.rank] = directory.manifest
        first.setdefault(directory.rank, n)
    stages = [directory.manifest.pipeline_stage for directory in run.directories]
    return RankTable(
        np.array(list(first), dtype=np.int64),
        np.array(list(first.values()), dtype=np.int64),
        np.array(stages, dtype=np.int64),
        tuple(_attributes(latest)),
        any(len((manifest.get("groups") or {}).get("expert_parallel") or ()) > 1 for manifest in latest.values()),
    )


def _attributes(latest: Mapping[int, Manifest]) -> list[RankAttribute]:
    """Host (if every manifest names one), pipeline stage and group of replicas of each rank."""
    hosts = [manifest.host for manifest in latest.values()]
    stages = [manifest.pipeline_stage for manifest in latest.values()]
    found = []
    if all(hosts):
        place = {host: n for n, host in enumerate(dict.fromkeys(hosts))}  # in the order of their lowest ranks
        found.append(RankAttribute(HOST, tuple(place), np.array([place[host] for host in hosts], dtype=np.int64)))
    names, of = np.unique(np.array(stages), return_inverse=True)
    found.append(RankAttribute("pipeline stage", tuple(map(str, names)), of.astype(np.int64)))
    return [*found, _replicas(latest)]


def _replicas(latest: Mapping[int, Manifest]) -> RankAttribute:
    """Groups of ranks that hold the same part of the model: as manifests name them, else those of a stage."""
    known: dict[tuple[object, ...], int] = {}
    names: list[str] = []
    of = []
    for rank, manifest in latest.items():
        named = manifest.get("groups") or {}
        group = next((tuple(named[name]) for name in REPLICAS if named.get(name)), None)
        key = ("stage", manifest.pipeline_stage) if group is None or rank not in group else group
        if key not in known:
            known[key] = len(names)
            names.append(f"replicas of rank {rank}")
        of.append(known[key])
    return RankAttribute("group", tuple(names), np.array(of, dtype=np.int64))
