"""Edits of values in a configuration file that keep comments, order and layout of everything else."""

from __future__ import annotations

import json
import os
import re
from codecs import BOM_UTF8
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from stat import S_IMODE
from typing import Any, NamedTuple

import yaml

from probe.core.config.errors import ConfigError
from probe.core.config.json_text import braced, plain_json
from probe.core.config.parse import YAML_ENDINGS, content, parse, text_of
from probe.core.language import message
from probe.core.storage.files import replacing

_BLANKS = " \t\r\n"
_ALIAS = re.compile(r"\s*:\s*(\*[^\s,\]}]+)")


class _Span(NamedTuple):
    """Span of the value of a key in a text."""

    begin: int
    end: int
    lead: str = ""
    """Blanks that a new value needs before it."""


class _Object(NamedTuple):
    """Mapping in a text: the values of its keys, and the place where a key may be added."""

    values: dict[str, _Span]
    inside: int
    """Offset after its opening brace; in a YAML block, of its first key."""
    flow: bool
    """True if it is written in braces."""


def change(path: Path, changes: Mapping[str, Any], only: bytes | None = None) -> None:
    """Write the values of ``changes`` (dotted keys) into a configuration file, in one move.

    Args:
        only: the content that is changed; None: any.

    Raises:
        InterruptedError: if the file has another content than ``only``; it stays.
        ConfigError: if the file is no configuration, or if these keys cannot be changed without changing others.
        OSError: if it cannot be written.
    """
    name, found = str(path), path.resolve()
    raw = content(name)  # once: another process may be writing
    if only is not None and raw != only:
        raise InterruptedError(f"{name}: it was edited meanwhile")
    text = text_of(name, raw)
    before = parse(name, text).values
    edited = edit(text, changes, path.name.lower().endswith(YAML_ENDINGS))
    try:
        after = parse(name, edited).values
    except ConfigError:
        after = {}
    if after != changed(before, changes):
        raise ConfigError(
            name,
            [
                message(
                    "{name}: {keys} cannot be changed alone (YAML anchors?); edit the file",
                    name=name,
                    keys=", ".join(changes),
                )
            ],
        )
    with replacing(found) as file:
        about = found.stat()
        with suppress(OSError):  # as far as this process may
            os.fchown(file.fileno(), about.st_uid, about.st_gid)
        os.fchmod(file.fileno(), S_IMODE(about.st_mode))
        file.write("\ufeff" * raw.startswith(BOM_UTF8) + edited)
        if only is not None and content(name) != only:  # again, since what is edited from now on is lost
            raise InterruptedError(f"{name}: it was edited meanwhile")


def changed(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``values`` with those of ``changes`` (dotted keys); missing mappings are created."""
    result = dict(values)
    for key, value in changes.items():
        place = result
        *above, last = key.split(".")
        for part in above:
            inner = place.get(part)
            place[part] = inner = dict(inner) if isinstance(inner, dict) else {}
            place = inner
        place[last] = value
    return result


def edit(text: str, changes: Mapping[str, Any], is_yaml: bool) -> str:
    """Return ``text`` with new values; a missing key is put first into its mapping, which is created if it is
    missing."""
    before = behind = 0
    if not is_yaml:
        text, before, behind = braced(text)
    for key, value in changes.items():
        text = _put(text, key.split("."), value, is_yaml)
    return text[before : len(text) - behind]


def _put(text: str, path: list[str], value: Any, is_yaml: bool) -> str:
    look = _yaml_object if is_yaml else _json_object
    place = look(text, [])
    for depth, key in enumerate(path):
        span = place.values.get(key)
        if span is None or (depth + 1 < len(path) and look(text, path[: depth + 1]) is None):
            missing = value
            for inner in reversed(path[depth + 1 :]):
                missing = {inner: missing}
            return _added(text, place, key, missing) if span is None else _replaced(text, span, missing)
        if depth + 1 < len(path):
            place = look(text, path[: depth + 1])
    return _replaced(text, place.values[path[-1]], value)


def _replaced(text: str, span: _Span, value: Any) -> str:
    return text[: span.begin] + span.lead + json.dumps(value) + text[span.end :]


def _added(text: str, place: _Object, key: str, value: Any) -> str:
    line = text[: place.inside].rpartition("\n")[2]
    if not place.flow:
        ending = "\r\n" if "\r\n" in text else "\n"
        return f"{text[: place.inside]}{key}: {json.dumps(value)}{ending}{line}{text[place.inside :]}"
    rest = text[place.inside :]
    gap = rest[: len(rest) - len(rest.lstrip(_BLANKS))] if place.values else ""
    comma = "," if place.values else ""
    return f"{text[: place.inside]}{gap}{json.dumps(key)}: {json.dumps(value)}{comma}{rest}"


def _json_object(text: str, path: list[str]) -> Any:
    """Object at ``path``; None if there is none."""
    bare = plain_json(text)
    begin = _past_blanks(bare, 0)
    for key in path:
        found = _json_members(bare, begin)
        if found is None or key not in found.values:
            return None
        begin = found.values[key].begin
    return _json_members(bare, begin)


def _json_members(bare: str, begin: int) -> _Object | None:
    if not bare.startswith("{", begin):
        return None
    decode = json.JSONDecoder().raw_decode
    values, at = {}, _past_blanks(bare, begin + 1)
    while bare[at] != "}":
        key, at = decode(bare, at)
        start = _past_blanks(bare, _past_blanks(bare, at) + 1)  # past the colon
        _, end = decode(bare, start)
        values[key] = _Span(start, end)
        at = _past_blanks(bare, end)
        at = _past_blanks(bare, at + 1) if bare[at] == "," else at
    return _Object(values, begin + 1, flow=True)


def _past_blanks(text: str, at: int) -> int:
    while at < len(text) and text[at] in _BLANKS:
        at += 1
    return at


def _yaml_object(text: str, path: list[str]) -> Any:
    node: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    for key in path:
        inner = {at.value: each for at, each in node.value} if isinstance(node, yaml.MappingNode) else {}
        if key not in inner:
            return None
        node = inner[key]
    if not isinstance(node, yaml.MappingNode):
        return None
    values = {key.value: _yaml_span(text, key, value) for key, value in node.value}
    inside = node.start_mark.index + bool(node.flow_style)
    return _Object(values, inside, flow=bool(node.flow_style))


def _yaml_span(text: str, key: yaml.Node, value: yaml.Node) -> _Span:
    begin, end = value.start_mark.index, value.end_mark.index
    if not getattr(value, "flow_style", False):  # YAML counts the blanks behind a block to it
        end = begin + len(text[begin:end].rstrip())
    if begin < key.end_mark.index and (alias := _ALIAS.match(text, key.end_mark.index)):
        return _Span(*alias.span(1))  # the value itself stands where its anchor is
    if begin == end:
        return _Span(begin, end, " ")
    if value.start_mark.line > key.start_mark.line and value.start_mark.column <= key.start_mark.column:
        return _Span(begin, end, "  ")  # a list may begin below its key
    return _Span(begin, end)
