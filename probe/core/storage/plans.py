"""Plans of the ranks of a run that follow a configuration file, from their manifests: where ranks differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice, pairwise
from typing import NamedTuple

from probe.core.storage.directories import RankDirectory, RecordedRun
from probe.core.storage.manifest import MOST_CHANGES, REST, Manifest

MOST_DIFFERENCES = 100
"""Stretches of steps that are returned at most."""


class PlanDifference(NamedTuple):
    """Steps in which ranks collect by different configurations."""

    first: int
    last: int
    ranks: tuple[int, ...]
    """Ranks that differ from most, or from the first rank if as many do."""


class _Plans(NamedTuple):
    """Plans of a rank."""

    changes: tuple[tuple[int, str], ...]
    """Names, with the steps from which they hold."""
    end: int
    """The step before which the last one is known to hold."""


def plan_differences(run: RecordedRun) -> list[PlanDifference]:
    """Return the first stretches of steps in which ranks have different plans, in order."""
    by_plans: dict[_Plans, list[int]] = {}
    for rank, directories in run.by_rank().items():
        if (plans := _plans(directories)) is not None:
            by_plans.setdefault(plans, []).append(rank)
    if len(by_plans) < 2:
        return []
    return list(islice(_merged(_differences(by_plans)), MOST_DIFFERENCES))


def _differences(by_plans: Mapping[_Plans, Sequence[int]]) -> Iterator[PlanDifference]:
    """Go through the steps at which any plan begins or ends, with the plans in effect and the ranks that have them."""
    changes = [(step, plans, name) for plans in by_plans for step, name in plans.changes if step < plans.end]
    changes += [(plans.end, plans, "") for plans in by_plans]
    present: dict[_Plans, str] = {}
    votes = Counter[str]()
    moments = [(step, list(group)) for step, group in groupby(sorted(changes), lambda change: change[0])]
    for (step, group), (following, _) in pairwise(moments):
        for _, plans, name in group:
            ranks = len(by_plans[plans])
            votes[present.get(plans, "")] -= ranks
            votes[name] += ranks
            present[plans] = name
        if sum(votes[name] > 0 for name in votes if name) > 1:
            yield PlanDifference(step, following - 1, tuple(_minority(by_plans, present, votes)))


def _minority(
    by_plans: Mapping[_Plans, Sequence[int]], present: Mapping[_Plans, str], votes: Mapping[str, int]
) -> list[int]:
    """Return the ranks that differ from most, or from the first rank if as many do."""
    running = [(plans, name) for plans, name in present.items() if name]
    first = min(running, key=lambda pair: by_plans[pair[0]][0])[1]
    usual = max((name for name in votes if name), key=lambda name: (votes[name], name == first))
    return sorted(rank for plans, name in running if name != usual for rank in by_plans[plans])


def _merged(differences: Iterator[PlanDifference]) -> Iterator[PlanDifference]:
    """Join stretches that follow each other on the same ranks."""
    before: PlanDifference | None = None
    for difference in differences:
        if before is not None and (before.last + 1, before.ranks) == (difference.first, difference.ranks):
            before = before._replace(last=difference.last)
            continue
        if before is not None:
            yield before
        before = difference
    if before is not None:
        yield before


def _plans(directories: Sequence[RankDirectory]) -> _Plans | None:
    """Return the plans of one rank; None if it follows no file, or was written by a version that names no plans."""
    changes: list[tuple[int, str]] = []
    end = 0
    for manifest in (directory.manifest for directory in directories):
        listed = _listed(manifest)
        if manifest.control is None or listed is None:
            return None
        trimmed = len(manifest.changes) > MOST_CHANGES
        for step, name in [*([] if trimmed else [(manifest.first_step or 0, REST)]), *listed]:
            changes = [*(change for change in changes if change[0] < step), (step, name)]  # a run resumed goes back
        end = _end(manifest, changes)
    return _Plans(tuple(changes), end)


def _listed(manifest: Manifest) -> list[tuple[int, str]] | None:
    """Return the steps and names of the plans among the changes; None if one has no name."""
    listed: list[tuple[int, str]] = []
    for change in manifest.changes:
        step, name = change.get("step"), change.get("plan")
        if isinstance(step, int) and isinstance(name, str):
            listed.append((step, name))
        elif "optimizer" not in change:
            return None
    return listed


def _end(manifest: Manifest, changes: Sequence[tuple[int, str]]) -> int:
    """Return the step before which the last plan is known to hold; while a run goes on, the next change may be due."""
    if manifest.last_step is not None:
        return manifest.last_step + 1
    return changes[-1][0] if changes else 0
