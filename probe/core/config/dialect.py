"""Dialect: the configuration of another monitor as it is read here, each key with its section and its effect.

The tables of msprobe's Monitor, MindSpore Transformers and InternEvo are made of the models that validate their
sections, so that a key cannot be read without standing in its table; docs/reference/dialects.md shows them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from probe.core.config.errors import Path, path_text
from probe.core.fields import Section, inner_sections
from probe.core.language import Message, message

TOP = ""
"""Section of the keys at the top of a file."""
MOST_SECTIONS = 3
"""Most sections that a message names for a key."""


class DialectKey(NamedTuple):
    """Key of another monitor's configuration."""

    section: str
    """Section from which it is read, such as ``monitor.alert``; positions in lists are left out."""
    name: str
    effect: str
    """Its effect here; of a key that is not supported, the feature of this package that does the same."""
    supported: bool = True

    @property
    def path(self) -> str:
        return f"{self.section}.{self.name}" if self.section else self.name


@dataclass(frozen=True)
class Dialect:
    """Keys of another monitor's configuration."""

    title: str
    """Name of the monitor."""
    keys: tuple[DialectKey, ...]
    ambiguous: Collection[str] = ()
    """Names under which sections of the program have things of their own; they are searched in :attr:`sections` alone.
    """
    sections: Collection[str] = (TOP,)
    """Sections in which no other program has keys of these names."""
    asks: Callable[[object], bool] = bool
    """Function that is true for a value of a key that is not supported, if the value asks for anything."""

    @cached_property
    def places(self) -> Mapping[str, tuple[str, ...]]:
        """Sections from which a key of a name is read."""
        found: dict[str, tuple[str, ...]] = {}
        for key in self.keys:
            if key.section not in found.setdefault(key.name, ()):
                found[key.name] += (key.section,)
        return found

    @cached_property
    def unsupported(self) -> Mapping[str, str]:
        """Keys without an effect here, each with the feature that does the same."""
        return {key.name: key.effect for key in self.keys if not key.supported}

    def place(self, name: object, section: str = "") -> Message | None:
        """Return words about the section in which a key has its effect; None if the dialect has no such key, or if it
        stands in one of its sections, where another key beside it decides."""
        sections = self.places.get(name) if isinstance(name, str) else None
        if sections is None or (section and section in sections):
            return None
        if sections == (TOP,):
            return message("it belongs at the top of the file; move it there")
        shown = " or ".join(section or "the top of the file" for section in sections[:MOST_SECTIONS])
        return message("it belongs in the section {section}; move it there", section=shown)

    def misplaced(
        self, values: Mapping[Any, Any], strict: Collection[str] = (), at: Path = ()
    ) -> Iterator[tuple[Path, str]]:
        """Yield the path of each key that stands where it is not read, and a sentence about it.

        Args:
            strict: sections in which that is an error already.
            at: path of ``values`` in the file.
        """
        for path, value in _entries(values, at, self.unsupported):
            *above, name = path
            section = ".".join(part for part in above if isinstance(part, str))
            searched = section in self.sections or name not in self.ambiguous
            if not searched or section in (*self.places.get(str(name), (section,)), *strict):
                continue
            if name not in self.unsupported:
                yield path, f"{path_text(path)} has no effect: {self.place(name)}"
            elif self.asks(value):
                yield path, self.not_supported(str(name), path)

    def not_supported(self, name: str, path: Path) -> str:
        """Return a sentence about a key without an effect here."""
        return f"{path_text(path)} is not supported; here, {self.unsupported[name]}"


def keys_of(model: type[Section], section: str = TOP, names: Collection[str] | None = None) -> tuple[DialectKey, ...]:
    """Return the keys of a section, with the docstring under each field as its effect.

    Args:
        names: the keys that are documented; None for all.
    """
    fields = ((name, field) for name, field in model.model_fields.items() if names is None or name in names)
    return tuple(DialectKey(section, name, inspect.cleandoc(field.description or "")) for name, field in fields)


def all_keys(model: type[Section], section: str = TOP) -> Iterator[DialectKey]:
    """Yield the keys of a section and of all sections inside it."""
    for key in keys_of(model, section):
        yield key
        for inner, _ in inner_sections(model.model_fields[key.name]):
            yield from all_keys(inner, key.path)


def not_here(section: str, effects: Mapping[str, str]) -> tuple[DialectKey, ...]:
    """Return keys without an effect, each with the feature that does the same."""
    return tuple(DialectKey(section, name, effect, supported=False) for name, effect in effects.items())


def _entries(values: Mapping[Any, Any], at: Path, closed: Collection[str]) -> Iterator[tuple[Path, object]]:
    """Yield the path and the value of every key, of lists and mappings inside too; what an alias repeats, once.

    Args:
        closed: keys into whose values is not looked.
    """
    waiting: list[tuple[Path, object]] = [(at, values)]
    seen: set[int] = set()
    for path, value in waiting:
        if id(value) in seen or (path and path[-1] in closed):
            continue
        if isinstance(value, Mapping):
            inner: list[tuple[Path, object]] = [((*path, str(key)), below) for key, below in value.items()]
            yield from inner
        elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
            inner = [((*path, number), below) for number, below in enumerate(value)]
        else:
            continue
        seen.add(id(value))
        waiting += inner
