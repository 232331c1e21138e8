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
    """A module or parameter with its names."""

    stage: int
    full: str
    """Name in the framework."""
    name: str
    """Name in rows."""
    thing: Any
    key: Key
    """The key of its rows, without part, micro step and call."""


def watched(stage: int, full: str, name: str, thing: Any) -> Watched:
    """Return ``thing`` with these names and its key."""
    return Watched(stage, full, name, thing, Key(name, stage=stage))


def named(
    stage: int,
    things: Iterable[tuple[str, Any]],
    full_names: Iterable[str],
    in_use: set[tuple[int, str]],
    squash: bool,
) -> Iterator[Watched]:
    """Yield ``things``, full names with what they name, with their row names: squashed if configured. If two things of
    one stage would have the same name, both keep their full names, except one whose short name was in use before: rows
    have been written under it.

    Args:
        full_names: those of all things of the stage that can be watched now.
        in_use: stages and row names in use, to which those of ``things`` are added.
    """
    numbers = Counter(map(squash_name, set(full_names))) if squash else Counter[str]()
    for full, thing in things:
        name = squash_name(full) if squash else full
        if name != full and ((stage, name) in in_use or numbers[name] > 1):
            name = full
        in_use.add((stage, name))
        yield watched(stage, full, name, thing)


MOST_NAMED, MOST_HINTS = 20, 3
"""Number of unknown names that a message lists, and of those listed with the nearest known name: a search for it
compares every name of the model."""


Lead = Callable[[tuple[int | str, ...]], str]
"""Function that returns the beginning of a problem's sentence (file and line, if it is a file) by the path of a key."""


def no_lead(path: tuple[int | str, ...]) -> str:  # noqa: ARG001
    """Return the lead of a configuration that is not a file: nothing."""
    return ""


def unknown_names(wrong: Sequence[str], names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each of ``wrong``, up to the number that a message lists, with the end of the sentence about it."""
    in_order = sorted(names) if wrong else []
    for number, name in enumerate(wrong[:MOST_NAMED]):
        near = nearest_name(name, in_order) if number < MOST_HINTS else None
        rest = f"; and {len(wrong) - MOST_NAMED} more" if number + 1 == MOST_NAMED < len(wrong) else ""
        yield name, (f"; did you mean {near!r}?" if near else "; print(model) shows the names") + rest


def nearest_name(name: str, names: Sequence[str]) -> str | None:
    """Return the name of ``names`` most like ``name``; None if there is none, or ``name`` is too long."""
    return next(iter(difflib.get_close_matches(name, names, n=1)), None) if len(name) <= LONGEST_NAME else None


class WatchedTarget(NamedTuple):
    key: str
    """Key in the configuration, as written."""
    stage: int | None
    name: str
    places: Mapping[str, Any]


class Selection:
    """The modules and parameters that ``targets``, ``all_xy``, ``forward_only`` and ``backward_only`` select."""

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
        """Names of modules that are watched including everything inside them."""
        self._parameters = True
        """True if parameters outside of these are watched."""
        self._modules = True
        """True if modules outside of these are watched."""

    def widened(self, within: Iterable[str], parameters: bool, modules: bool) -> Selection:
        """Return this selection extended by everything inside the modules named ``within``.

        Args:
            parameters: whether parameters outside ``within`` are watched as in this selection, or not at all.
            modules: the same for modules.
        """
        wide = copy(self)
        wide._within, wide._parameters, wide._modules = tuple(within), parameters, modules
        return wide

    def watches(self, parameter: Watched) -> bool:
        """True if a parameter is among the targets or inside one. ``layers.1`` never matches ``layers.10``."""
        if self._is_within(parameter):
            return True
        if not self._parameters:
            return False
        around = {part for name in names_of(parameter.full) for part in _around(name)}
        return bool(self._find(parameter.stage, around)) or not self._targets

    def places(self, module: Watched) -> dict[str, Any]:
        """The watched places of a module: place -> element selector, or None for all elements."""
        places = self._chosen_places(module) if self._modules else {}
        return dict.fromkeys(PLACES) | places if self._is_within(module) else places

    def _is_within(self, thing: Watched) -> bool:
        return any(inside(name, around) for around in self._within for name in names_of(thing.full))

    def _chosen_places(self, module: Watched) -> dict[str, Any]:
        if numbers := self._find(module.stage, names_of(module.full)):
            first = self._targets[min(numbers)]
            return {place: first.places[place] for place in self._open if place in first.places}
        return dict.fromkeys(self._open) if self._all_xy else {}

    def named(self, stage: int, full: str) -> str | None:
        """The target that names this thing, or None."""
        numbers = self._find(stage, names_of(full))
        return self._targets[min(numbers)].key if numbers else None

    def check(self, names: Iterable[str], lead: Lead = no_lead) -> list[str]:
        """Return a sentence for each target that matched nothing, up to the number that a message lists.

        Args:
            names: all names of the model.
            lead: returns the beginning of a sentence, by the path of its key.
        """
        wrong = [self._targets[number].key for number in self._unmatched]
        full = set(names)
        with_squashed = full | {squash_name(name) for name in full} if wrong else full
        expected = "expected the name of a module or parameter of the model"
        bare = [re.sub(r"^\d+:", "", key) for key in wrong]
        return [
            f"{lead(('targets', key))}targets.{key[:LONGEST_NAME]}: {expected}, got {key[:LONGEST_NAME]!r}{end}"
            for key, (_, end) in zip(wrong, unknown_names(bare, with_squashed), strict=False)
        ]

    def _find(self, stage: int, names: Iterable[str]) -> list[int]:
        """Return the positions of the targets with these names, and count these targets as matched."""
        keys = ((of, name) for name in names for of in (None, stage))
        numbers = [number for key in keys for number in self._at.get(key, ())]
        for number in numbers:
            self._unmatched.pop(number, None)
        return numbers


def _target(key: str, entry: Any) -> WatchedTarget:
    prefix = re.match(r"(\d+):", key)
    places = {place: getattr(entry, place) for place in PLACES if getattr(entry, place) is not None}
    name = key[prefix.end() :] if prefix else key
    return WatchedTarget(key, int(prefix.group(1)) if prefix else None, name, places or dict.fromkeys(PLACES))


def names_of(full: str) -> set[str]:
    """All names of a thing: the full name, the squashed one, and the raw one of the framework's wrappers."""
    return {full, squash_name(full), getattr(full, "raw", full)}


def _around(name: str) -> Iterator[str]:
    """Yield ``name`` and the names of all modules around it; the empty name is the whole model."""
    yield ""
    yield name
    yield from (name[: dot.start()] for dot in re.finditer(r"\.", name))


def inside(name: str, target: str) -> bool:
    return not target or name == target or name.startswith(f"{target}.")
