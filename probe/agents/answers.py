"""Answers of the tools: bounded, with names of runs in fields of their own."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from probe.agents.schema import SCHEMA_VERSION
from probe.core.messages import encodable, printable_json

MOST_CHARACTERS = 20_000
"""Characters of an answer at most."""
MOST_NAME = 200
"""Characters of a name; a longer one is cut, and taken in its cut form by every tool."""
MOST_TEXT = 1000
"""Characters of another text."""
MOST_CHOICES = 50
"""Names that an error lists."""
PLAIN = re.compile(r"[\w.:/()\[\]<>#@-]+")
"""Names that can stand in a sentence; any other is quoted."""

Answer = dict[str, Any]


class WrongArgument(Exception):  # noqa: N818 - the call is wrong, nothing has failed
    """An argument that cannot be used.

    Args:
        argument: its name.
        expected: sentence without any name of a run.
        choices: names that can be used.
        value: the value that came.
    """

    def __init__(self, argument: str, expected: str, choices: Iterable[str] = (), value: object = None) -> None:
        super().__init__(expected)
        self.argument, self.expected, self.choices, self.value = argument, expected, [*choices], value

    def answer(self) -> Answer:
        """Return the fields of the answer."""
        fields: Answer = {"argument": self.argument, "expected": self.expected}
        if self.choices:
            fields["choices"] = [*map(short_name, self.choices[:MOST_CHOICES])]
            fields["choices_left_off"] = max(0, len(self.choices) - MOST_CHOICES)
        if self.value is not None:
            fields["value"] = short_name(str(self.value))
        return fields


def short_name(name: str) -> str:
    """Return a name; of a long one its beginning, with a mark that differs from that of any other name."""
    if len(name) <= MOST_NAME:
        return name
    mark = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{name[: MOST_NAME - 13]}#{mark}"


def chosen_name(argument: str, text: str, names: Sequence[str]) -> str:
    """Return the name of ``names`` that a text is, whole or in its cut form.

    Raises:
        WrongArgument: if there is none.
    """
    if text in names:
        return text
    for name in names if len(text) == MOST_NAME else ():
        if short_name(name) == text:
            return name
    likely = [name for name in names if text.casefold() in name.casefold()] if text else []
    raise WrongArgument(argument, "one of `choices`", likely or names, text)


def sentence(text: str, names: Iterable[str]) -> str:
    """Return a sentence in which names that are more than words and dots are quoted, as JSON quotes them."""
    parts = {part for name in names for part in (name, name.rpartition(".")[0]) if part and not PLAIN.fullmatch(part)}
    if parts:  # in one pass, so that no name is quoted within another one
        any_part = re.compile("|".join(map(re.escape, sorted(parts, key=len, reverse=True))))
        text = any_part.sub(lambda match: json.dumps(short_name(match[0])), text)
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]} ({len(text) - MOST_TEXT} characters left off)"


def number(value: Any, digits: int = 5) -> float | int | str | None:
    """Return a number with few digits; a text for NaN and the infinities; None for none."""
    if value is None or isinstance(value, str):
        return value
    value = float(value)
    return float(f"{value:.{digits}g}") if math.isfinite(value) else str(value)


def clean(value: Any) -> Any:
    """Return a part of an answer without a lone surrogate, which no message can hold."""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, Mapping):
        return {encodable(str(name)): clean(item) for name, item in value.items()}
    return [clean(item) for item in value] if isinstance(value, list | tuple) else value


def text_of(answer: Mapping[str, Any]) -> str:
    """Return an answer as JSON without a control character or a mark of direction."""
    return printable_json(json.dumps(answer, ensure_ascii=False, allow_nan=False))


def bounded(answer: Answer, name: str, entries: Sequence[Any], page: tuple[int, int, int], ask: str = "") -> Answer:
    """Return an answer with a list of as many ``entries`` as there is room for.

    Args:
        name: field of the list.
        page: entries before these, entries that were asked for, and entries of all.
        ask: advice on how to ask for the others; empty: with an offset.
    """
    before, limit, total = page
    room = MOST_CHARACTERS - len(text_of({"schema_version": SCHEMA_VERSION, **answer})) - 400
    shown: list[Any] = []
    for entry in entries[:limit]:
        room -= len(text_of({"": entry}))
        if room < 0 and shown:
            break
        shown.append(entry)
    rest = total - before - len(shown)
    ask = ask or f"again with offset={before + len(shown)}"
    left_off = {"before": before, "after": rest, "ask": ask if rest > 0 else ""}
    return {**answer, name: shown, "total": total, "left_off": left_off if before or rest > 0 else None}
