"""Call stacks: the frames that led to a call, names for its line, whole stacks for the log and for ``cc_codeline``."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from types import FrameType

Line = tuple[str, int, str]
"""Path, line number and function."""
Stack = tuple[Line, ...]

LINE_LENGTH = 1000
"""Characters at the end of a stack line in which a regular expression is searched."""
REMEMBERED = 10_000
"""Stacks whose decision is kept."""


def stack(frame: FrameType | None) -> Stack:
    """The lines of ``frame`` and its callers, the nearest first."""
    lines = []
    while frame is not None:
        code = frame.f_code
        lines.append((code.co_filename, frame.f_lineno, code.co_name))
        frame = frame.f_back
    return tuple(lines)


def text(line: Line) -> str:
    """``path[line] function``."""
    path, number, function = line
    return f"{path}[{number}] {function}"


class Sites:
    """Gives each line of code a short name of its own: ``train.py[23]``, with folders where two files are called the
    same. No name contains a slash, which would end it in tags."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, int], str] = {}
        self._paths: dict[str, str] = {}

    def name(self, path: str, number: int) -> str:
        """The name of a line."""
        known = self._names.get((path, number))
        if known is None:
            known = self._names[path, number] = f"{self._short(path)}[{number}]"
        return known

    def _short(self, path: str) -> str:
        parts = [part.strip("/\\") for part in PurePath(path).parts]
        for kept in range(1, len(parts) + 1):
            short = ".".join(parts[-kept:])
            if self._paths.setdefault(short, path) == path:
                return short
        return ".".join(parts)


class LinePatterns:
    """Which calls a configuration chooses by regular expressions on the lines of their stacks; without any, all.

    Each stack is searched once, however often it calls: an expression may be slow.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [re.compile(pattern) for pattern in patterns]
        self._known: dict[Stack, bool] = {}

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def choose(self, calling: Stack) -> bool:
        """Whether calls from this stack are chosen."""
        known = self._known.get(calling)
        if known is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            lines = [text(line)[-LINE_LENGTH:] for line in calling]
            known = any(pattern.search(line) for line in lines for pattern in self._patterns)
            self._known[calling] = known
        return known


def callers() -> Iterator[FrameType]:
    """The frames of the calling functions, the nearest first.

    Those of other threads are left out: ``sys._current_frames`` may wait for ever, and return frames that are gone by
    then (Python 3.11, https://github.com/python/cpython/issues/106883).
    """
    frame = sys._getframe(1).f_back
    while frame is not None:
        yield frame
        frame = frame.f_back
