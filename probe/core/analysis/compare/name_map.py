"""Mapping of the names of one run to those of the other."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

import yaml

from probe.core.errors import advice_of
from probe.core.language import invalid

REGEX = "re:"
"""Prefix of a name that is a regular expression."""
OTHER_LAST = {"gamma": ("weight",), "beta": ("bias",), "embedding_table": ("weight",)} | {
    "weight": ("gamma", "embedding_table"),
    "bias": ("beta",),
}
"""Last components of the names of parameters of norms and embeddings, with those of the other framework."""


class MapEntry(NamedTuple):
    """Line of a mapping."""

    of_a: str
    of_b: str
    find: re.Pattern[str]
    replace: str | Callable[[re.Match[str]], str]

    def map(self, name: str) -> str | None:
        """Return the name of ``name`` in the other run; None if this line does not match it."""
        match = self.find.fullmatch(name)
        if match is None:
            return None
        return self.replace(match) if callable(self.replace) else match.expand(self.replace)


class NameMap(NamedTuple):
    """Content of a mapping file."""

    names: tuple[MapEntry, ...] = ()
    signals: Mapping[str, str] = {}
    source: str = ""
    """Path of the file."""


class Pairs(NamedTuple):
    """Result of mapping the names of two runs."""

    renamed: dict[str, str]
    """Names of A that are different in B, with those."""
    frameworks: int
    """Number of them that are parameters of norms and embeddings, which frameworks name differently."""


def read(path: Path) -> NameMap:
    """Read a mapping file: JSON, or YAML if its name ends in ``.yaml`` or ``.yml``.

    Raises:
        ValueError: if it is not one, with all problems.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise invalid("{path}: expected a mapping file; {reason}", path=path, reason=advice_of(error)) from None
    is_yaml = path.suffix in (".yaml", ".yml")
    try:
        content = yaml.safe_load(text) if is_yaml else json.loads(text)
    except (ValueError, yaml.YAMLError) as error:
        mark = getattr(error, "problem_mark", None)
        at = f"line {mark.line + 1} column {mark.column + 1}: {getattr(error, 'problem', '')}" if mark else str(error)
        raise ValueError(f"{path}: expected {'YAML' if is_yaml else 'JSON'}; {at}; correct it") from None
    problems = _problems(content)
    if problems:
        raise ValueError("\n".join(f"{path}: {problem}" for problem in problems))
    names = (content.get("names") or {}) if isinstance(content, dict) else {}
    signals = (content.get("signals") or {}) if isinstance(content, dict) else {}
    return NameMap(tuple(entry(a, b) for a, b in names.items()), dict(signals), str(path))


def entry(of_a: str, of_b: str) -> MapEntry:
    """Line of a mapping: a name, one with ``*`` for any text without dots, or ``re:`` and a regular expression.

    A name stands for all names beneath it too: ``encoder`` for ``encoder.fc.weight``.

    Raises:
        ValueError: if it is not valid.
    """
    if of_a.startswith(REGEX):
        try:
            find = re.compile(of_a.removeprefix(REGEX))
            re.sub(find.pattern + "|", of_b, "")  # raises if of_b has groups that the expression has not
        except (re.error, IndexError) as error:
            raise invalid(
                "{of_a!r}: {of_b!r}: expected a regular expression and its replacement; {error}",
                of_a=of_a,
                of_b=of_b,
                error=error,
            ) from None
        return MapEntry(of_a, of_b, find, of_b)
    if of_a.count("*") != of_b.count("*"):
        raise invalid("{of_a!r}: {of_b!r}: expected as many * on both sides", of_a=of_a, of_b=of_b)
    find = re.compile(re.escape(of_a).replace(r"\*", r"([^.]*)") + r"(\..*)?", re.DOTALL)
    return MapEntry(of_a, of_b, find, lambda match: _filled(of_b, match.groups()))


def pair(mapping: NameMap, of_a: Collection[str], of_b: Collection[str], across: bool) -> Pairs:
    """Map the names of A to those of B.

    Args:
        across: true if the runs are of two frameworks.

    Raises:
        ValueError: if a line of the mapping matches no name of A, or names nothing of B; with the nearest names.
    """
    renamed: dict[str, str] = {}
    hits: dict[MapEntry, list[str]] = {line: [] for line in mapping.names}
    for name in of_a:
        for line in mapping.names:
            target = line.map(name)
            if target is not None:
                renamed[name] = target
                hits[line].append(target)
                break
    names, problems = set(of_b), []
    for line, targets in hits.items():
        if not targets:
            problems.append(f"{line.of_a!r} is no name of A{nearest(line.of_a, _stems(of_a))}")
        elif names.isdisjoint(targets):
            expected = f"expected {targets[0]!r} there{nearest(line.of_b, _stems(of_b))}"
            problems.append(f"{line.of_b!r} is no name of B: {expected}")
    if problems:
        raise ValueError("\n".join(f"{mapping.source}: {problem}" for problem in problems))
    _refuse_meeting(mapping, renamed, of_a, names)
    by_framework = _across(set(of_a) - set(renamed), set(of_a), names) if across else {}
    return Pairs({a: b for a, b in (renamed | by_framework).items() if a != b}, len(by_framework))


def nearest(name: str, names: Iterable[str]) -> str:
    """Text such as `` (nearest: 'fc.weight')``; empty if no name is near."""
    close = get_close_matches(name, list(names), 1, 0.5)
    return f" (nearest: {close[0]!r})" if close else ""


def _across(names: Collection[str], of_a: Collection[str], of_b: Collection[str]) -> dict[str, str]:
    pairs = {}
    for name in names:
        if name in of_b:
            continue
        head, dot, last = name.rpartition(".")
        others = (head + dot + renamed for renamed in OTHER_LAST.get(last, ()))
        target = next((renamed for renamed in others if renamed in of_b and renamed not in of_a), None)
        if target is not None:
            pairs[name] = target
    return pairs


def _refuse_meeting(mapping: NameMap, renamed: Mapping[str, str], of_a: Collection[str], of_b: Collection[str]) -> None:
    """Raise ValueError if two names of A would be mapped to one of B."""
    sources: dict[str, str] = {}
    for name in of_a:
        target = renamed.get(name, name)
        if target in of_b and target in sources:
            raise invalid(
                "{source}: {value!r} and {name!r} of A would both be {target!r} of B",
                source=mapping.source,
                value=sources[target],
                name=name,
                target=target,
            )
        sources[target] = name


def _filled(pattern: str, groups: tuple[str | None, ...]) -> str:
    pieces = pattern.split("*")
    *texts, rest = groups
    return "".join(piece + (text or "") for piece, text in zip(pieces, [*texts, rest], strict=True))


def _stems(names: Iterable[str]) -> set[str]:
    """Names and all their prefixes."""
    return {name[:end] for name in names for end in [len(name), *(m.start() for m in re.finditer(r"\.", name))]} - {""}


def _problems(content: object) -> list[str]:
    if not isinstance(content, dict):
        return [f'expected {{"names": {{...}}, "signals": {{...}}}}; there is {type(content).__name__}']
    keys = ("names", "signals")
    problems = [
        f"unknown key {key!r}{nearest(str(key), keys)}; there are {', '.join(keys)}"
        for key in content
        if key not in keys
    ]
    for key in keys:
        entries = content.get(key) or {}
        if not isinstance(entries, dict):
            problems.append(f"{key}: expected names of A, each with that of B; there is {type(entries).__name__}")
            continue
        wrong = [a for a, b in entries.items() if not isinstance(a, str) or not isinstance(b, str)]
        problems += [f"{key}: {a!r}: expected a text for a text; there is {entries[a]!r}" for a in wrong]
        if key == "names":
            problems += [problem for a, b in entries.items() if a not in wrong and (problem := _meaningless(a, b))]
    return problems


def _meaningless(of_a: str, of_b: str) -> str | None:
    try:
        entry(of_a, of_b)
    except ValueError as error:
        return str(error)
    return None
