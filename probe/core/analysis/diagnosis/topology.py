"""Groups in which ranks train, and so which ranks' data can reach which others."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from probe.core.storage.directories import RankDirectory
from probe.core.storage.duckdb_reader import Rows
from probe.core.storage.layout import COVERAGE, SHARERS_SQL, coverage_of
from probe.core.storage.manifest import DATA, PIPELINE, Manifest
from probe.core.storage.table_files import TableFile


class Place(NamedTuple):
    """Place of a rank in the groups that train together."""

    rank: int
    stage: int = 0
    """Pipeline stage."""
    pipeline: tuple[int, ...] = ()
    """Ranks of its pipeline, itself included; empty if unknown."""
    replicas: tuple[int, ...] = ()
    """Ranks that hold the same part of the model and average gradients; empty if unknown."""
    peers: tuple[int, ...] = ()
    """Ranks with which it exchanges activations within a forward: tensor, context and expert parallel; empty if
    unknown."""
    experts: bool = False
    """True if experts are spread over ranks, so that replicas hold different ones."""


class Topology:
    """Groups of all ranks.

    Groups named by manifests are believed. If manifests name none, ranks of equal pipeline stage are taken for
    replicas, and each rank of a stage for a neighbour of each of the next.

    A group that many ranks name is kept once, with a number; 0 is the number of a group that is not known.
    """

    def __init__(self, places: Iterable[Place]) -> None:
        groups = _NumberedGroups()
        self._places: dict[int, Place] = {}
        self._numbers: dict[int, GroupNumbers] = {}
        for place in sorted(places, key=lambda position: position.rank):
            of = GroupNumbers(*map(groups.number, (place.pipeline, place.replicas, place.peers)))
            pipeline, replicas, peers = (groups.ranks[number] for number in of)
            self._places[place.rank] = place._replace(pipeline=pipeline, replicas=replicas, peers=peers)
            self._numbers[place.rank] = of
        self._members = [frozenset(ranks) for ranks in groups.ranks]
        self.ranks = tuple(self._places)

    def place(self, rank: int) -> Place:
        """Place of a rank; alone if nothing is known of it."""
        return self._places.get(rank, Place(rank))

    def stage(self, rank: int) -> int:
        """Pipeline stage of a rank."""
        return self.place(rank).stage

    def numbers(self, rank: int) -> GroupNumbers:
        """Numbers of the groups that a rank names."""
        return self._numbers.get(rank, _ALONE)

    def members(self, number: int) -> frozenset[int]:
        """Ranks of a group."""
        return self._members[number]

    @cached_property
    def containing(self) -> GroupsByRank:
        """Numbers of the groups that contain a rank, whichever ranks name them."""
        groups = GroupsByRank({}, {}, {})
        for index, by_rank in enumerate(groups):
            for number in dict.fromkeys(numbers[index] for numbers in self._numbers.values()):
                for rank in self._members[number]:
                    by_rank.setdefault(rank, []).append(number)
        return groups

    @cached_property
    def _naming(self) -> dict[int, list[int]]:
        """Ranks that name a group their pipeline, by its number."""
        by_rank: dict[int, list[int]] = {}
        for rank, numbers in self._numbers.items():
            by_rank.setdefault(numbers.pipeline, []).append(rank)
        return by_rank

    def naming(self, pipeline: int) -> Sequence[int]:
        """Ranks that name a group their pipeline."""
        return self._naming.get(pipeline, ())

    def are_replicas(self, one: int, other: int) -> bool:
        """Return whether two ranks average their gradients."""
        number = self.numbers(one).replicas
        if number:
            return other in self._members[number]
        return self.stage(one) == self.stage(other) and not self.are_peers(one, other)

    def are_peers(self, one: int, other: int) -> bool:
        """Return whether two ranks exchange activations within a forward."""
        return other in self._members[self.numbers(one).peers]

    def are_in_one_pipeline(self, one: int, other: int) -> bool:
        """Return whether activations of one rank can reach the other."""
        number = self.numbers(one).pipeline
        return other in self._members[number] if number else self.stage(one) != self.stage(other)

    def are_connected(self, one: int, other: int) -> bool:
        """Return whether anything that one rank computes reaches the other in the end."""
        return (
            self.are_replicas(one, other)
            or self.are_peers(one, other)
            or self.are_in_one_pipeline(one, other)
            or any(
                self.are_replicas(rank, other)
                for pipeline in self.containing.pipeline.get(one, ())
                for rank in self.naming(pipeline)
            )
        )

    def mates(self, rank: int) -> tuple[int, ...]:
        """Ranks of its pipeline, itself included; itself alone if none is known."""
        return self.place(rank).pipeline or (rank,)

    def replica_groups(self) -> list[tuple[int, ...]]:
        """Groups of two ranks or more that should hold parameters alike, in the order of their first rank."""
        groups: dict[tuple[int, int], list[int]] = {}
        for rank, place in self._places.items():
            number = self._numbers[rank].replicas
            groups.setdefault((number, -1 if number else place.stage), []).append(rank)
        return [tuple(group) for group in groups.values() if len(group) > 1]

    @cached_property
    def says_replicas(self) -> bool:
        """True if manifests name the ranks that are replicas."""
        return any(numbers.replicas for numbers in self._numbers.values())

    @cached_property
    def has_experts(self) -> bool:
        """True if experts are spread over ranks."""
        return any(place.experts for place in self._places.values())


class GroupNumbers(NamedTuple):
    """Numbers of the groups that a rank names."""

    pipeline: int = 0
    replicas: int = 0
    peers: int = 0


_ALONE = GroupNumbers()


class GroupsByRank(NamedTuple):
    """Numbers of groups by a rank that they contain."""

    pipeline: dict[int, list[int]]
    replicas: dict[int, list[int]]
    peers: dict[int, list[int]]


class _NumberedGroups:
    """Groups of ranks, each kept once."""

    def __init__(self) -> None:
        self.ranks: list[tuple[int, ...]] = [()]
        self._numbers: dict[tuple[int, ...], int] = {(): 0}

    def number(self, ranks: tuple[int, ...]) -> int:
        """Number of a group."""
        number_of_group = self._numbers.setdefault(ranks, len(self.ranks))
        if number_of_group == len(self.ranks):
            self.ranks.append(ranks)
        return number_of_group


Groups = Mapping[int, Sequence[int]]
TOGETHER = ("tensor_parallel", "context_parallel", "expert_parallel", "expert_tensor_parallel")
"""Groups in which activations are exchanged within a forward."""


def topology(
    directories: Iterable[RankDirectory], mates: Groups | None = None, sharers: Groups | None = None
) -> Topology:
    """Topology of a run.

    Args:
        mates: pipeline groups by rank, from other sources than the manifests.
        sharers: ranks with which a rank computes on parts of the same tensors, by its rows.
    """
    latest = {directory.rank: directory.manifest for directory in directories}
    return Topology(
        _place(rank, manifest, (mates or {}).get(rank, ()), (sharers or {}).get(rank, ()))
        for rank, manifest in latest.items()
    )


def _place(rank: int, manifest: Manifest, mates: Collection[int], sharers: Collection[int]) -> Place:
    named = manifest.groups
    pipeline = named.get(PIPELINE) or tuple(mates)
    if rank not in pipeline or len(pipeline) == 1:
        pipeline = ()
    stage = manifest.pipeline_stage or (pipeline.index(rank) if pipeline else 0)
    replicas = named.get("data_and_context_parallel") or named.get(DATA) or ()
    experts = len(named.get("expert_parallel") or ()) > 1
    peers = set(sharers).union(*(named.get(group, ()) for group in TOGETHER))
    return Place(rank, stage, pipeline, replicas, tuple(sorted(peers)), experts)


SIGNALS = ("grad_unreduced", "actv")
"""Signals whose rows hold parts if ranks share a computation. If they only share storage (FSDP, ZeRO), each rank has a
whole gradient of its own."""


def sharers(rows: Rows) -> dict[int, tuple[int, ...]]:
    """Ranks with which each rank shares tensors while it computes; ranks that share none are left out."""
    by_rank: dict[int, set[int]] = {}
    for signal in SIGNALS:
        for rank, text in _coverages(rows, signal):
            cover = coverage_of(text)
            if cover is not None:
                by_rank.setdefault(rank, set()).update(cover.ranks)
    return {rank: tuple(sorted(ranks)) for rank, ranks in sorted(by_rank.items()) if len(ranks) > 1}


def _coverages(rows: Rows, signal: str) -> Iterator[tuple[int, str]]:
    """One coverage for each rank and group of ranks in the first files of a signal, of a packed run in all: a query for
    all files of equal columns."""
    if signal in rows.files and any(directory.packed is not None for directory in rows.directories):
        yield from rows.connection.execute(
            f"SELECT rank, min({COVERAGE}) FROM {rows.view(signal)} WHERE {COVERAGE} <> '' "  # noqa: S608 - our own words
            f"GROUP BY rank, {SHARERS_SQL}"
        ).fetchall()
        return
    alike: dict[tuple[str, tuple[str, ...]], dict[str, int]] = {}
    files: dict[str, TableFile] = {}
    for rank, file in _first_files(rows, signal).items():
        files[str(file.path)] = file
        alike.setdefault((file.format, file.columns), {})[str(file.path)] = rank
    for (_, columns), ranks in alike.items():
        source = rows.source([files[path] for path in ranks])
        if COVERAGE in (columns or rows.columns(source)):
            query = (
                f"SELECT filename, min({COVERAGE}) FROM {source} WHERE {COVERAGE} <> '' "  # noqa: S608 - our own words
                f"GROUP BY filename, {SHARERS_SQL}"
            )
            yield from ((ranks[path], text) for path, text in rows.connection.execute(query).fetchall())


def _first_files(rows: Rows, signal: str) -> dict[int, TableFile]:
    first: dict[int, TableFile] = {}
    for n, file in rows.files.get(signal, ()):
        first.setdefault(rows.directories[n].rank, file)
    return first
