"""Texts in the language of the terminal: what is raised, sent and written in files is English everywhere.

A :class:`Message` is English text that keeps the template that it was made of. Where the command line prints it,
:func:`translated` looks the template up in the catalogue in ``probe/locale``, which is read at the first use. Outside
of the command line only a line of the log that probe itself writes to the terminal is looked up.
"""

from __future__ import annotations

import gettext
import os
import re
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from math import isfinite
from numbers import Integral, Real
from pathlib import Path

DOMAIN = "probe"
FOLDER = Path(__file__).parent.parent / "locale"


class Message(str):
    """English text that can be translated where it is printed."""

    template: str
    values: Mapping[str, object]
    separator: str | None = None
    """Text between the values of a message without a template."""

    def __str__(self) -> str:
        """Return the message itself, so that it survives in an exception."""
        return self


def message(template: str, /, **values: object) -> Message:
    """Make a message of a template such as ``{path}: expected UTF-8``; without values, ``template`` is the text.

    Values are printed as they are, but for those that are messages.
    """
    made = Message(template.format(**values) if values else template)
    made.template, made.values = template, values
    return made


def invalid(template: str, /, **values: object) -> ValueError:
    """Return an error with the message that a template and its values make."""
    return ValueError(message(template, **values))


class MessageError(Exception):
    """Error with the message that a template and its values make."""

    def __init__(self, template: str, /, **values: object) -> None:
        super().__init__(template if isinstance(template, Message) else message(template, **values))


def joined(separator: str, texts: Iterable[str]) -> Message:
    """Join texts to a message that translates each."""
    values = {f"t{number}": text for number, text in enumerate(texts)}
    made = Message(separator.join(values.values()))
    made.template, made.values, made.separator = "", values, separator
    return made


def capitalized(text: str) -> Message:
    """Return a message with a capital letter at its beginning."""
    made = Message(text[:1].upper() + text[1:])
    made.template, made.values = "{text}", {"text": text}
    return made


def plain(text: str) -> str:
    """Return a message as a text of Python's own class, for packages that accept no other."""
    return str.__str__(text)


def translated(text: str) -> str:
    """Return a message in the language of the command line, any other text as it is."""
    return in_language(text) if _active else text


def in_language(text: str, language: str = "") -> str:
    """Return a message in a language such as ``zh_CN``, any other text as it is.

    Args:
        language: empty for that of the variables of the environment.
    """
    if not isinstance(text, Message):
        return text
    values = {
        name: in_language(str(each), language) if isinstance(each, str | BaseException) else each
        for name, each in text.values.items()
    }
    look_up = _catalogue(language).gettext
    if text.separator is not None:
        separator = look_up(text.separator) if text.separator else ""
        return separator.join(map(str, values.values())).replace("。 ", "。")
    template = look_up(text.template) if text.template else ""
    return template.format(**values) if values else template


def packed(text: str) -> object:
    """Return a text as a value that JSON can hold, a message with its template, so that another process can translate
    it."""
    if not isinstance(text, Message):
        return str(text)
    template = {"template": text.template} if text.separator is None else {"separator": text.separator}
    return {**template, "values": {name: _packed_value(value) for name, value in text.values.items()}}


def _packed_value(value: object) -> object:
    if isinstance(value, Real) and not isinstance(value, bool):  # NumPy's too
        number = int(value) if isinstance(value, Integral) else float(value)
        return number if isfinite(number) else {"number": str(number)}
    return packed(value if isinstance(value, str) else str(value))


def unpacked(value: object) -> str:
    """Return the text that :func:`packed` has got.

    Raises:
        ValueError: if it is something else, or a template has more than plain fields.
    """
    if not isinstance(value, Mapping):
        return str(value)
    values = {str(name): _unpacked_value(each) for name, each in dict(value.get("values") or {}).items()}
    if "separator" in value:
        return joined(str(value["separator"]), map(str, values.values()))
    template = str(value.get("template", ""))
    if not _PLAIN_TEMPLATE.fullmatch(template):
        raise ValueError(f"expected a template with plain fields, got {template[:80]!r}")
    try:
        return message(template, **values)
    except (KeyError, IndexError) as error:
        raise ValueError(f"expected the values of {template[:80]!r}, got {[*values]}") from error


def _unpacked_value(value: object) -> object:
    if isinstance(value, int | float):
        return value
    return float(value["number"]) if isinstance(value, Mapping) and "number" in value else unpacked(value)


_PLAIN_TEMPLATE = re.compile(r"([^{}]|\{\w+(:(,|([.]\d)?[defg%]))?\})*")
"""Template of a file: no attribute of a value is reached, and no width is asked for."""


def looked_up(text: str) -> str:
    """Return the translation of a text that stands in the catalogue, such as the help of an option."""
    return _catalogue().gettext(text) if text and _active else text


def is_active() -> bool:
    """Return whether messages are printed in another language than English."""
    return bool(_active)


_active: list[bool] = []
"""Not empty in a process of the command line whose language has a catalogue."""


def activate() -> None:
    """Print messages in the language of ``LANGUAGE``, ``LC_ALL``, ``LC_MESSAGES`` or ``LANG``.

    It needs a catalogue, and standard output and error that can encode it.
    """
    if gettext.find(DOMAIN, FOLDER) and can_print(sys.stdout) and can_print(sys.stderr):
        _active[:] = [True]
        # Texts of Typer are looked up in the process's domain.
        gettext.bindtextdomain(DOMAIN, os.fspath(FOLDER))
        gettext.textdomain(DOMAIN)


def can_print(stream: object) -> bool:
    """Return whether a stream can encode Chinese."""
    try:
        "中".encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeError, LookupError):
        return False
    return True


@cache
def _catalogue(language: str = "") -> gettext.NullTranslations:
    return gettext.translation(DOMAIN, FOLDER, [language] if language else None, fallback=True)
