"""Names from files as a terminal may be given them: what would move its cursor or turn its text round is escaped."""

from __future__ import annotations

import re

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters (Unicode's Cc), separators of lines, marks of direction (UAX 9) and lone surrogates."""


def printable(text: str) -> str:
    """``text`` on one line, each control character as Python writes it, such as ``\\x1b`` or ``\\n``."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def printable_json(text: str) -> str:
    """JSON, in which each control character is escaped as JSON and YAML escape it: ``\u001b``."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def printable_lines(text: str) -> str:
    """As :func:`printable`, with the line feeds of ``text`` kept: for what has several lines on purpose."""
    return "\n".join(map(printable, text.split("\n")))
