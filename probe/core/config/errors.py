"""Problems of a configuration, one line each, led by the key's path."""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from probe.core.alerting.redaction import redact
from probe.core.fields import describe, peel
from probe.core.language import Message, joined, message

Path = tuple[int | str, ...]
Belonging = Callable[[object, str], Message | None]
"""Function that returns words about the section in which a key of this name has an effect, if there is one."""
_REPR = reprlib.Repr()
_REPR.maxother = _REPR.maxstring = 100
_ENCODER = json.JSONEncoder(ensure_ascii=False, default=_REPR.repr)
_IDENTIFIER = re.compile(r"[^\W\d]\w*")
_KEY = "[key]"  # pydantic's last part of the location of a dict's key


_MOST_NAMES = 30
"""Most names that an error about an unknown key lists."""
MOST_SHOWN = 50
"""Most problems that an error lists."""
MOST_TEXT = 80
"""Most characters of a value that a problem shows."""
LONGEST_NAME = 200
"""Most characters of a name for which the nearest other is searched."""


class UnrunCode:
    """Value in a Python file that only a run of the file would give; the file is never run.

    Args:
        code: its code.
    """

    def __init__(self, code: str) -> None:
        self.code = code


class ConfigError(ValueError):
    """Error of a configuration that cannot be used.

    Args:
        more: number of problems besides those listed.
    """

    advice = message("Correct these and start again; `probe config explain KEY` describes a key.")
    """Last line of the message."""

    def __init__(self, source: str, problems: Sequence[str], more: int = 0) -> None:
        super().__init__(source, problems, more)
        self.source = source
        """Path of the file, or ``the given mapping``."""
        self.problems = tuple(problems)
        """Lines, each led by the path of a key; for a file, by ``file:line: `` and that path, or by
        ``file:line:column``."""
        self.more = more

    def __str__(self) -> str:
        number = len(self.problems) + self.more
        heading = message(
            "{source}: {number} problems in the configuration"
            if number > 1
            else "{source}: {number} problem in the configuration",
            source=self.source,
            number=number,
        )
        rest = (message("and {number} more", number=self.more),) if self.more else ()
        return joined("\n", (heading, *self.problems, *rest, self.advice))


class UnreadableConfigError(ConfigError):
    """Error of a configuration file that cannot be read at all."""


def path_text(path: Path) -> str:
    """Text of a path as users write it: ``alert.rules[0].args``, ``targets["layers.0"].input``."""
    text = ""
    for part in path:
        if not text:
            text = str(part) or '""'
        elif isinstance(part, str) and _IDENTIFIER.fullmatch(part):
            text += f".{part}"
        else:
            text += f"[{json.dumps(part, ensure_ascii=False)}]"
    return text


def nearest(name: object, names: Sequence[str], likeness: float = 0.65) -> str | None:
    """Find the name of ``names`` that a user may have meant, ignoring case; it is at least this like ``name``."""
    if len(str(name)) > LONGEST_NAME:
        return None
    known = {candidate.casefold(): candidate for candidate in names}
    close = get_close_matches(str(name).casefold(), list(known), n=1, cutoff=likeness)
    return known[close[0]] if close else None


def problems(
    error: ValidationError,
    model: type[BaseModel],
    lead: Callable[[Path], str],
    at: Path = (),
    place: Belonging = lambda _, __: None,
) -> Iterator[str]:
    """Yield every problem of ``error``, raised by ``model``, which is at the path ``at``.

    Args:
        lead: returns the beginning of a problem's line from the path of its key.
        place: names the section to which a key belongs, of its name and the section where it stands and is unknown.
    """
    for entry in error.errors(include_url=False):
        context: Mapping[str, Any] = entry.get("ctx", {})
        path = (*at, *entry["loc"])
        if entry["type"] == "inside":
            yield from problems(context["error"], context["model"], lead, path, place)
        else:
            path = path[:-1] if path[-1:] == (_KEY,) else path
            section = ".".join(part for part in path[:-1] if isinstance(part, str))
            sentence = _sentence(entry["type"], entry["loc"], entry["input"], context, model, place, section)
            yield joined("", (lead(path), _cut(path_text(path), LONGEST_NAME), ": ", sentence))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _sentence(
    kind: str,
    loc: Path,
    value: object,
    context: Mapping[str, Any],
    model: type[BaseModel],
    place: Belonging,
    section: str,
) -> Message:
    if kind == "invalid_key" or loc[-1:] == (_KEY,):
        text = shown(loc[-1] if kind == "invalid_key" else value)
        return message("expected a string as key, got {value}; put it in quotes", value=text)
    if kind == "extra_forbidden":
        known = list(peel(_resolve(model, loc[:-1])[0])[0].model_fields)
        if isinstance(value, Mapping) and value.keys() & known:
            inside = ", ".join([key for key in known if key in value][:_MOST_NAMES])
            text = "unknown key; {names} in it belong one level higher: write them in its place"
            return message(text, names=inside)
        return unknown_key(loc[-1], known, place, section)
    expected = context.get("expected") or describe(*_resolve(model, loc)).expected
    if kind == "missing":
        return message("missing; expected {expected}", expected=expected)
    if kind == "unknown_name":
        hint = _hint(value, context["names"], context.get("also", {}))
    else:
        hint = _form(_resolve(model, loc)[0], value, str(expected).startswith("a list "))
        hint = hint or _unquoted(value, str(expected))
    text = context["shown"] if "shown" in context and not isinstance(value, UnrunCode) else shown(value)
    return message("expected {expected}, got {value}{hint}", expected=expected, value=text, hint=hint)


def _form(annotation: Any, value: object, is_list: bool) -> str:
    """Return an advice about a list or a section in whose place something else stands."""
    bare = peel(annotation)[0]
    if is_list and get_origin(bare) is tuple and not isinstance(value, list | tuple):
        if isinstance(value, str) and get_args(bare) and str in (get_args(bare)[0], peel(get_args(bare)[0])[0]):
            return message("; write {text}", text=json.dumps([part.strip() for part in value.split(",")]))
        if get_args(bare) and peel(get_args(bare)[0])[0] in (int, float):
            return message("; write numbers in brackets, such as [0, 1]")
        return message("; write it in brackets: [...]")
    if get_origin(bare) is dict and not isinstance(value, Mapping):
        return message("; write a key before each value")
    if isinstance(bare, type) and issubclass(bare, BaseModel) and not isinstance(value, Mapping):
        return message("; write keys such as {names} in it", names=", ".join([*bare.model_fields][:3]))
    return ""


def _unquoted(value: object, expected: str) -> str:
    """Return an advice about a number, or about true or false, that is written as a text."""
    flag = {"yes": "true", "on": "true", "no": "false", "off": "false"}.get(str(value).lower(), str(value).lower())
    with suppress(ValueError):
        if isinstance(value, str) and expected.startswith("true or false") and flag in ("true", "false"):
            return message("; write {text} without quotes", text=flag)
        if isinstance(value, str) and expected.startswith(("a number", "an integer")):
            return message("; write {text} without quotes", text=f"{float(value):.15g}")
        if expected == "a string" and isinstance(value, int | float):
            return message('; write it in quotes, "{text}"', text=json.dumps(value))
    return ""


def unknown_key(name: object, known: Sequence[str], place: Belonging, section: str = "") -> Message:
    """Return a sentence about a key that a section does not have: where it belongs, or the nearest of ``known``."""
    if (belonging := place(name, section)) is not None:
        return joined("", (message("unknown key"), "; ", belonging))
    return joined("", (message("unknown key"), _hint(name, known) or _expected_key(known)))


def _expected_key(known: Sequence[str]) -> Message:
    if len(known) > _MOST_NAMES:
        return message("; expected one that `probe config explain` lists")
    return message("; expected one of {names}", names=", ".join(known))


def _hint(name: object, names: Sequence[str], also: Mapping[str, str] | None = None) -> str:
    parts = [part.strip() for part in str(name).split(",")]
    if len(parts) > 1 and {*parts} <= {*names}:
        return message("; did you mean {name}?", name=json.dumps(parts))
    close = (also or {}).get(str(name).casefold()) or nearest(name, names)
    return message("; did you mean {name}?", name=close) if close else ""


def shown(value: object) -> str:
    """Encode ``value`` as JSON, cut to fit a line; of a large value only as much is encoded."""
    if isinstance(value, UnrunCode):
        code = _cut(redact(value.code), MOST_TEXT)
        return message(
            "{code}, which is not run; write the value itself, or pass the dict from your program", code=code
        )
    text = ""
    try:
        for piece in _ENCODER.iterencode(value):
            text += piece[: MOST_TEXT + 1]
            if len(text) > MOST_TEXT:
                break
    except (TypeError, ValueError, RecursionError):  # keys that JSON lacks; a YAML alias inside its own anchor
        text = f"a {type(value).__name__}"
        with suppress(ValueError):  # an integer of more than 4300 digits
            text = _REPR.repr(value)
    return _cut(redact(text), MOST_TEXT)


def _resolve(model: type[BaseModel], loc: Path) -> tuple[Any, Sequence[object]]:
    """Annotation and metadata at ``loc`` inside ``model``."""
    annotation: Any = model
    metadata: Sequence[object] = ()
    for part in loc:
        bare, _ = peel(annotation, metadata)
        if get_origin(bare) in (tuple, dict):
            annotation, metadata = get_args(bare)[0 if get_origin(bare) is tuple else 1], ()
        else:
            field = bare.model_fields[part]
            annotation, metadata = field.annotation, field.metadata
    return annotation, metadata
