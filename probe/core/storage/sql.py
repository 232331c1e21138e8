"""Words of SQL: identifiers and texts with any characters, and paths for DuckDB."""

from __future__ import annotations

import re
from collections.abc import Sequence

_GLOB = re.compile(r"[\[*?]")
_ESCAPED = re.compile(r"\[([\[*?])\]")


def quoted(name: str) -> str:
    """Return ``name`` as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return ``text`` as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def pattern_of(path: object) -> str:
    """Return the pattern that matches the file ``path`` alone: DuckDB reads every path as a pattern."""
    return _GLOB.sub(r"[\g<0>]", str(path))


def unescaped(pattern: str) -> str:
    """Return the name that a pattern of :func:`pattern_of` matches."""
    return _ESCAPED.sub(r"\g<1>", pattern)


def listed(paths: Sequence[object]) -> str:
    """Return ``paths`` as a list for DuckDB's readers."""
    return f"[{', '.join(literal(pattern_of(path)) for path in paths)}]"


def folder_of(path: str) -> str:
    """Return the folder of a path as DuckDB's ``parse_dirpath`` does: empty, not ``.``, in the current directory."""
    return path.rpartition("/")[0]
