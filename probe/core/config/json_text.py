"""JSON as people write it: with comments, forgiven commas and braces, and mistakes explained with their place."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from probe.core.language import message

_STRING = r'"(?:\\.|[^"\\\n])*"'
_COMMENT = re.compile(rf"{_STRING}|//[^\n]*|/\*.*?\*/", re.DOTALL)
_LAST_COMMA = re.compile(rf"{_STRING}|,(?=\s*[}}\]])", re.DOTALL)
_TOKEN = re.compile(rf'{_STRING}|[{{}}\[\]:,]|"[^\n]*|[^\s{{}}\[\]:,"]+')
_BLANK = re.compile(r"\s+|//[^\n]*|/\*.*?\*/", re.DOTALL)
_KEY_FIRST = re.compile(rf"{_STRING}\s*:")
_WORD = re.compile(r"[^\W\d][\w.$]*")
_CLOSING = {"{": "}", "[": "]"}
_CONSTANTS = {"true": "true", "false": "false", "none": "null", "null": "null", "undefined": "null"}
_BEFORE, _BEHIND = "{", "\n}"
"""Braces around a fragment, which change the line of no character."""


def plain_json(text: str) -> str:
    """Replace comments, and the comma after a last element, by blanks; every position stays."""

    def blank_comment(found: re.Match[str]) -> str:
        return found[0] if found[0].startswith('"') else re.sub(r"[^\n]", " ", found[0])

    bare = _COMMENT.sub(blank_comment, text)

    def blank_comma(found: re.Match[str]) -> str:
        return " " if found[0] == "," and _before(bare, found.start()) not in tuple("[{,:") else found[0]

    return _LAST_COMMA.sub(blank_comma, bare)


def _before(text: str, at: int) -> str:
    """Character before a position, ignoring blanks; empty at the beginning."""
    while at and text[at - 1].isspace():
        at -= 1
    return text[at - 1 : at]


def is_fragment(text: str) -> bool:
    """Return whether ``text`` begins with a key, so that the braces around it are missing."""
    begin = 0
    while (comment := _BLANK.match(text, begin)) is not None:
        begin = comment.end()
    return _KEY_FIRST.match(text, begin) is not None


def braced(text: str) -> tuple[str, int, int]:
    """Put braces around ``text`` if it is a fragment (``"eps": 1``); also return the numbers of characters added before
    and after it."""
    if not is_fragment(text):
        return text, 0, 0
    return f"{_BEFORE}{text}{_BEHIND}", len(_BEFORE), len(_BEHIND)


def offsets(bare: str) -> Mapping[tuple[str, ...], int]:
    """Offsets of each key and each element in correct JSON without comments; a position in a list is a number."""
    found: dict[tuple[str, ...], int] = {}
    containers: list[tuple[tuple[str, ...], int | None]] = []
    here: tuple[str, ...] = ()
    awaits_key = False
    for match in _TOKEN.finditer(bare):
        text = match[0]
        if text == ",":
            container, number = containers[-1]
            awaits_key = number is None
            if number is not None:
                containers[-1], here = (container, number + 1), (*container, str(number + 1))
        elif text in ("}", "]"):
            (here, _), awaits_key = containers.pop(), False
        elif awaits_key:
            name = json.loads(text) if "\\" in text else text[1:-1]
            here, awaits_key = (*containers[-1][0], name), False
            found[here] = match.start()
        elif text != ":":
            if not containers or containers[-1][1] is not None:
                found[here] = match.start()
            if text in _CLOSING:
                awaits_key = text == "{"
                containers.append((here, None if awaits_key else 0))
                here = here if awaits_key else (*here, "0")
    return found


def mistake(bare: str, error: json.JSONDecodeError, end: int) -> tuple[int, str]:
    """Locate and explain a mistake in JSON: what was expected, what came, what to write.

    Args:
        bare: text without comments.
        end: end of the user's own text in it.
    """
    if (text := _string_around(bare, error.pos)) is not None:
        return error.pos, _in_string(bare, text, error.pos)
    at = error.pos + len(bare[error.pos :]) - len(bare[error.pos :].lstrip())
    opened = _opened(bare, at)
    if at >= end:
        return end, _early_end(bare, opened)
    if opened and opened[-1][0] == "[" and bare[at] == ":":
        line = bare.count("\n", 0, opened[-1].start()) + 1
        text = "expected ], got :; it comes too late: the [ of line {line} is not closed; add ] where its list ends"
        return at, message(text, line=line)
    return at, _at(bare, at, bool(opened))


def _whole(text: str) -> bool:
    return re.fullmatch(_STRING, text, re.DOTALL) is not None


def _string_around(bare: str, at: int) -> str | None:
    """String around a position; one without a closing quote reaches to the end of its line."""
    for found in _TOKEN.finditer(bare):
        if found.start() > at:
            return None
        if found[0][0] == '"' and (found.start() < at < found.end() if _whole(found[0]) else at <= found.end()):
            return found[0]
    return None


def _in_string(bare: str, text: str, at: int) -> str:
    if bare[at : at + 1] == "\\":
        return message('expected a doubled backslash, got a single one; write it twice, as in "train.py\\\\[23\\\\]"')
    if not _whole(text):
        return message("expected a closing quote, got the end of the line; close the text {text}", text=_cut(text))
    return message("expected printable characters in a text, got a control character; write \\t for a tab")


def _opened(bare: str, at: int) -> list[re.Match[str]]:
    """Brackets that are open at a position, the innermost last."""
    opened: list[re.Match[str]] = []
    for found in _TOKEN.finditer(bare, 0, at):
        if found[0] in _CLOSING:
            opened.append(found)
        elif found[0] in ("}", "]") and opened:
            opened.pop()
    return opened


def _early_end(bare: str, opened: list[re.Match[str]]) -> str:
    if not opened:
        return message("expected a value, got the end of the file; it ends too early: was it saved as a whole?")
    bracket, line = opened[-1][0], bare.count("\n", 0, opened[-1].start()) + 1
    return message(
        "expected {closing}, got the end of the file; it ends too early: the {bracket} of line {line} is not closed; "
        "add what is missing and {closing}",
        closing=_CLOSING[bracket],
        bracket=bracket,
        line=line,
    )


_SIGNS = {
    "#": message("expected a key, a value or a comma, got #; JSON has no # comments: write //"),
    "'": message('expected double quotes, got a single quote; write "..."'),
    "/": message("expected a value, got /; a comment that begins with /* ends with */"),
    **dict.fromkeys("“”‘’", message('expected a straight double quote, got a curly one; write "..."')),
    "=": message("expected a colon, got =; write : between a key and its value"),
}


def _at(bare: str, at: int, inside: bool) -> str:
    """Explanation of the mistake that begins at a position."""
    before, rest = _before(bare, at), bare[at:]
    if (word := _WORD.match(rest)) is not None:
        return _word(word[0], rest[word.end() :].lstrip().startswith(":"))
    token = _TOKEN.match(rest)
    came = _cut(token[0]) if token else rest[0]
    number = bare[at - 1 : at].isalnum() or rest[0] in "+."
    cases = (
        (rest[0] in _SIGNS, _SIGNS.get(rest[0], "")),
        (
            not inside and at > 0,
            message("expected the end of the file, got {came}; one pair of braces holds all keys", came=came),
        ),
        (
            rest[0] in ",}]:" and before in tuple(":,[{"),
            message(
                "expected a key, got {came}; write it, or leave the comma or key out"
                if before == "{"
                else "expected a value, got {came}; write it, or leave the comma or key out",
                came=came,
            ),
        ),
        (
            number,
            message(
                "expected a number as JSON writes it, such as 10, 0.5 or 1e-8, got {came}; write it so",
                came=_around(bare, at),
            ),
        ),
        (
            before == '"' and rest[0] in "},",
            message("expected a colon and a value after the key, got {came}; write them", came=came),
        ),
        (
            rest[0] in '"{[' or rest[0].isalnum(),
            message("expected a comma, got {came}; write a comma before it", came=came),
        ),
    )
    otherwise = message(
        "expected a text in double quotes, a number, true, false, null, a list or a mapping, got {came}; write one",
        came=came,
    )
    return next((sentence for holds, sentence in cases if holds), otherwise)


def _word(word: str, is_key: bool) -> str:
    if is_key:
        return message('expected a key in double quotes, got {word}; write "{key}"', word=word, key=_cut(word))
    if (right := _CONSTANTS.get(word.casefold())) is not None:
        return message("expected a value, got {word}; write {right}", word=word, right=right)
    return message('expected a value, got {word}; write texts in double quotes: "{word}"', word=_cut(word))


def _around(bare: str, at: int) -> str:
    begin = at
    while begin and not bare[begin - 1].isspace() and bare[begin - 1] not in "{[,:":
        begin -= 1
    token = re.match(r"[^\s,\]}]+", bare[begin:])
    return _cut(token[0]) if token else bare[at]


def _cut(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."
