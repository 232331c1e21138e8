"""Texts in the language of the terminal: what is raised, logged, sent and written in files is English everywhere.

A :class:`Message` is English text that keeps the template that it was made of. Where the command line prints it,
:func:`translated` looks the template up in the catalogue in ``probe/locale``, which is read at the first use. Outside
of the command line nothing is looked up and nothing is read.
"""

from __future__ import annotations

import gettext
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
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


def translated(text: str) -> str:
    """Return a message in the language of the command line, any other text as it is."""
    return _with(text, looked_up) if _active else text


def in_language(text: str, language: str) -> str:
    """Return a message in a language such as ``zh_CN``, whatever that of the command line is."""
    return _with(text, gettext.translation(DOMAIN, FOLDER, [language], fallback=True).gettext)


def _with(text: str, look_up: Callable[[str], str]) -> str:
    """Return a message with its templates looked up."""
    if not isinstance(text, Message):
        return text
    values = {
        name: _with(str(each), look_up) if isinstance(each, str | BaseException) else each
        for name, each in text.values.items()
    }
    if text.separator is not None:
        return (look_up(text.separator) if text.separator else "").join(map(str, values.values())).replace("。 ", "。")
    template = look_up(text.template) if text.template else ""
    return template.format(**values) if values else template


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
    if gettext.find(DOMAIN, FOLDER) and _can_print(sys.stdout) and _can_print(sys.stderr):
        _active[:] = [True]
        # Texts of Typer are looked up in the process's domain.
        gettext.bindtextdomain(DOMAIN, os.fspath(FOLDER))
        gettext.textdomain(DOMAIN)


def _can_print(stream: object) -> bool:
    try:
        "中".encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeError, LookupError):
        return False
    return True


@cache
def _catalogue() -> gettext.NullTranslations:
    return gettext.translation(DOMAIN, FOLDER, fallback=True)
