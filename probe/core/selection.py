"""Which modules and parameters are watched, and under which names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from probe.core.naming import squash_name
from probe.core.records import Key

PLACES = ("input", "output", "input_grad", "output_grad")


class Watched(NamedTuple):
    """A module or parameter with the names it goes by."""

    stage: int
    full: str
    """As the framework calls it."""
    name: str
    """As rows call it."""
    thing: Any
    key: Key
    """Of its rows, as far as it alone says."""


def watched(stage: int, full: str, name: str, thing: Any) -> Watched:
    """``thing`` under these names."""
    return Watched(stage, full, name, thing, Key(name, stage=stage))


class Names:
    """Gives row names: squashed if asked for, but never the same for two things of one stage."""

    def __init__(self, squash: bool) -> None:
        self._squash = squash
        self._taken: set[tuple[int, str]] = set()
        self._full: set[tuple[int, str]] = set()

    def expect(self, stage: int, full_names: Iterable[str]) -> None:
        """Things of these names will come: no other is shortened to one of them."""
        self._full.update((stage, full) for full in full_names)

    def watch(self, stage: int, full: str, thing: Any) -> Watched:
        """``thing`` under its name."""
        name = squash_name(full) if self._squash else full
        if name != full and ((stage, name) in self._taken or (stage, name) in self._full):
            name = full
        self._taken.add((stage, name))
        return watched(stage, full, name, thing)

    def release(self, gone: Watched) -> None:
        """``gone`` is watched no more: its name is free."""
        self._taken.discard((gone.stage, gone.name))


class Target(NamedTuple):
    stage: int | None
    name: str
    places: Mapping[str, Any]


class Selection:
    """What ``targets``, ``all_xy``, ``forward_only`` and ``backward_only`` choose."""

    def __init__(self, targets: Mapping[str, Any], all_xy: bool, forward_only: bool, backward_only: bool) -> None:
        self._targets = [_target(key, entry) for key, entry in targets.items()]
        self._unmatched = dict(zip(self._targets_keys(), targets, strict=True))
        self._all_xy = all_xy or not targets
        forward, backward = PLACES[:2], PLACES[2:]
        self._open = (() if backward_only else forward) + (() if forward_only else backward)

    def _targets_keys(self) -> list[tuple[int | None, str]]:
        return [(target.stage, target.name) for target in self._targets]

    def watches(self, parameter: Watched) -> bool:
        """Whether a parameter is among the targets or inside one. ``layers.1`` never takes ``layers.10``."""
        names = names_of(parameter.full)
        found = [t for t in self._of(parameter.stage) if any(inside(name, t.name) for name in names)]
        self._matched(found)
        return bool(found) or not self._targets

    def places(self, module: Watched) -> dict[str, Any]:
        """What of a module is watched: place -> element selector, or None for all elements."""
        names = names_of(module.full)
        found = [t for t in self._of(module.stage) if t.name in names]
        self._matched(found)
        if found:
            return {place: found[0].places[place] for place in self._open if place in found[0].places}
        return dict.fromkeys(self._open) if self._all_xy else {}

    def check(self, names: Iterable[str]) -> list[str]:
        """One sentence for each target that named nothing; ``names`` are what could have been named."""
        full = set(names)
        known = sorted(full | {squash_name(name) for name in full})
        problems = []
        for key in self._unmatched.values():
            near = difflib.get_close_matches(key.split(":", 1)[-1], known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "; print(model) shows the names"
            problems.append(f"targets.{key}: expected the name of a module or parameter of the model{hint}")
        return problems

    def _of(self, stage: int) -> list[Target]:
        return [target for target in self._targets if target.stage in (None, stage)]

    def _matched(self, found: list[Target]) -> None:
        for target in found:
            self._unmatched.pop((target.stage, target.name), None)


def _target(key: str, entry: Any) -> Target:
    prefix = re.match(r"(\d+):", key)
    chosen = {place: getattr(entry, place) for place in PLACES if getattr(entry, place) is not None}
    name = key[prefix.end() :] if prefix else key
    return Target(int(prefix.group(1)) if prefix else None, name, chosen or dict.fromkeys(PLACES))


def names_of(full: str) -> set[str]:
    """All that a thing may be called: as the user has it, squashed, and as what wraps it has made of it."""
    return {full, squash_name(full), getattr(full, "raw", full)}


def inside(name: str, target: str) -> bool:
    return not target or name == target or name.startswith(f"{target}.")
