"""Words of SQL: identifiers and texts with any characters, and the paths that DuckDB takes."""

from __future__ import annotations

import re
from pathlib import Path

_GLOB = re.compile(r"[\[*?]")


def quoted(name: str) -> str:
    """``name`` as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """``text`` as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def pattern_of(path: Path) -> str:
    """The pattern that means the file ``path`` alone: DuckDB takes every path for a pattern."""
    return _GLOB.sub(r"[\g<0>]", str(path))


def listed(paths: list[Path]) -> str:
    """``paths`` as a list that DuckDB's readers take."""
    return f"[{', '.join(literal(pattern_of(path)) for path in paths)}]"


def folder_of(path: str) -> str:
    """The folder of a path as DuckDB's ``parse_dirpath`` returns it: empty, not ``.``, in the current directory."""
    return path.rpartition("/")[0]
