"""The modules and parameters that are watched, and their names."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple

from probe.core.config.errors import LONGEST_NAME
from probe.core.naming import squash_name
from probe.core.records import Key

PLACES = ("input", "output", "input_grad", "output_grad")


class Watched(NamedTuple):
    """A module or parameter with the names it goes by."""

    stage: int
    full: str
    """Its name in the framework."""
    name: str
    """Its name in rows."""
    thing: Any
    key: Key
    """The key of its rows, without part, micro step and call."""


def watched(stage: int, full: str, name: str, thing: Any) -> Watched:
    """``thing`` under these names."""
    return Watched(stage, full, name, thing, Key(name, stage=stage))


class TargetNames:
    """Makes row names: squashed if asked for, unless two things of one stage would have the same name: then both keep
    their full names. A name that was taken before the other came stays, as rows have been written under it.
    """

    def __init__(self, squash: bool) -> None:
        self._squash = squash
        self._taken: set[tuple[int, str]] = set()
        self._contested: dict[int, set[str]] = {}
        """By stage, the short names that several full names have."""

    def expect(self, stage: int, full_names: Iterable[str]) -> None:
        """Notes the full names of all that can be watched now."""
        names = Counter(squash_name(full) for full in set(full_names))
        self._contested[stage] = {name for name, number in names.items() if number > 1}

    def watch(self, stage: int, full: str, thing: Any) -> Watched:
        """``thing`` under its name."""
        name = squash_name(full) if self._squash else full
        if name != full and ((stage, name) in self._taken or name in self._contested.get(stage, ())):
            name = full
        self._taken.add((stage, name))
        return watched(stage, full, name, thing)

    def release(self, gone: Watched) -> None:
        """Frees the name of ``gone``, which is watched no more."""
        self._taken.discard((gone.stage, gone.name))


MOST_NAMED, MOST_HINTS = 20, 3
"""Unknown names that a message lists, and those of them with the nearest known name: finding it takes a look at every
name of the model."""


Lead = Callable[[tuple[int | str, ...]], str]
"""Returns the beginning of a problem's sentence, by the path of its key: the file and the line, if there is a file."""


def no_lead(path: tuple[int | str, ...]) -> str:  # noqa: ARG001
    """The lead of a configuration that is no file."""
    return ""


def unknown_names(wrong: Sequence[str], known: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Each of ``wrong``, as many as a message lists, with the end of the sentence about it."""
    there = sorted(known) if wrong else []
    for number, name in enumerate(wrong[:MOST_NAMED]):
        near = nearest_name(name, there) if number < MOST_HINTS else None
        rest = f"; and {len(wrong) - MOST_NAMED} more" if number + 1 == MOST_NAMED < len(wrong) else ""
        yield name, (f"; did you mean {near!r}?" if near else "; print(model) shows the names") + rest


def nearest_name(name: str, known: Sequence[str]) -> str | None:
    """The one of ``known`` that is most like ``name``; None for a name that is too long for any."""
    return next(iter(difflib.get_close_matches(name, known, n=1)), None) if len(name) <= LONGEST_NAME else None


class WatchedTarget(NamedTuple):
    key: str
    """As it was written."""
    stage: int | None
    name: str
    places: Mapping[str, Any]


class Selection:
    """The choice that ``targets``, ``all_xy``, ``forward_only`` and ``backward_only`` make."""

    def __init__(self, targets: Mapping[str, Any], all_xy: bool, forward_only: bool, backward_only: bool) -> None:
        self._targets = [_target(key, entry) for key, entry in targets.items()]
        self._at: dict[tuple[int | None, str], list[int]] = {}
        for number, target in enumerate(self._targets):
            self._at.setdefault((target.stage, target.name), []).append(number)
        self._unmatched = dict.fromkeys(range(len(self._targets)))
        self._all_xy = all_xy or not targets
        forward, backward = PLACES[:2], PLACES[2:]
        self._open = (() if backward_only else forward) + (() if forward_only else backward)
        self._within: tuple[str, ...] = ()
        """Names of modules that are watched with everything inside them."""
        self._parameters = self._modules = True
        """Whether any other parameters and modules are watched."""

    def widened(self, within: Iterable[str], parameters: bool, modules: bool) -> Selection:
        """A selection of everything inside the modules named ``within`` besides.

        Args:
            parameters: whether parameters elsewhere are watched as they are by this selection, or not at all.
            modules: the same of modules.
        """
        wide = copy(self)
        wide._within, wide._parameters, wide._modules = tuple(within), parameters, modules
        return wide

    def watches(self, parameter: Watched) -> bool:
        """Whether a parameter is among the targets or inside one. ``layers.1`` never takes ``layers.10``."""
        if self._is_within(parameter):
            return True
        if not self._parameters:
            return False
        around = {part for name in names_of(parameter.full) for part in _around(name)}
        return bool(self._find(parameter.stage, around)) or not self._targets

    def places(self, module: Watched) -> dict[str, Any]:
        """The places of a module that are watched: place -> element selector, or None for all elements."""
        known = self._chosen_places(module) if self._modules else {}
        return dict.fromkeys(PLACES) | known if self._is_within(module) else known

    def _is_within(self, thing: Watched) -> bool:
        return any(inside(name, around) for around in self._within for name in names_of(thing.full))

    def _chosen_places(self, module: Watched) -> dict[str, Any]:
        if found := self._find(module.stage, names_of(module.full)):
            first = self._targets[min(found)]
            return {place: first.places[place] for place in self._open if place in first.places}
        return dict.fromkeys(self._open) if self._all_xy else {}

    def named(self, stage: int, full: str) -> str | None:
        """The target that is the name of a thing, if one is."""
        found = self._find(stage, names_of(full))
        return self._targets[min(found)].key if found else None

    def check(self, names: Iterable[str], lead: Lead = no_lead) -> list[str]:
        """One sentence for each target that named nothing, as far as a message lists them.

        Args:
            names: all names of the model.
            lead: returns the beginning of a sentence, by the path of its key.
        """
        wrong = [self._targets[number].key for number in self._unmatched]
        full = set(names)
        known = full | {squash_name(name) for name in full} if wrong else full
        expected = "expected the name of a module or parameter of the model"
        bare = [re.sub(r"^\d+:", "", key) for key in wrong]
        return [
            f"{lead(('targets', key))}targets.{key[:LONGEST_NAME]}: {expected}, got {key[:LONGEST_NAME]!r}{end}"
            for key, (_, end) in zip(wrong, unknown_names(bare, known), strict=False)
        ]

    def _find(self, stage: int, names: Iterable[str]) -> list[int]:
        """The positions of the targets of these names, which name something."""
        keys = ((of, name) for name in names for of in (None, stage))
        found = [number for key in keys for number in self._at.get(key, ())]
        for number in found:
            self._unmatched.pop(number, None)
        return found


def _target(key: str, entry: Any) -> WatchedTarget:
    prefix = re.match(r"(\d+):", key)
    chosen = {place: getattr(entry, place) for place in PLACES if getattr(entry, place) is not None}
    name = key[prefix.end() :] if prefix else key
    return WatchedTarget(key, int(prefix.group(1)) if prefix else None, name, chosen or dict.fromkeys(PLACES))


def names_of(full: str) -> set[str]:
    """All names of a thing: as the user has it, squashed, and as its wrappers have changed it."""
    return {full, squash_name(full), getattr(full, "raw", full)}


def _around(name: str) -> Iterator[str]:
    """``name`` and the names of everything around it; the empty name is the whole model."""
    yield ""
    yield name
    yield from (name[: dot.start()] for dot in re.finditer(r"\.", name))


def inside(name: str, target: str) -> bool:
    return not target or name == target or name.startswith(f"{target}.")
