"""Call stacks: the frames that led to a call, names for its line, stacks for the log and for ``cc_codeline``."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from types import CodeType, FrameType

Line = tuple[str, int, str]
"""Path, line number and function."""
Stack = tuple[Line, ...]

LINE_LENGTH = 1000
"""Characters at the end of a stack line in which a regular expression is searched."""
REMEMBERED = 10_000
"""Number of stacks whose decisions are kept."""


def stack(frame: FrameType | None) -> Stack:
    """Return the lines of ``frame`` and its callers, the nearest first."""
    lines = []
    while frame is not None:
        code = frame.f_code
        lines.append((code.co_filename, frame.f_lineno, code.co_name))
        frame = frame.f_back
    return tuple(lines)


def text(line: Line) -> str:
    """Return ``path[line] function``."""
    path, number, function = line
    return f"{path}[{number}] {function}"


class Sites:
    """Short names, one for each line of code: ``train.py[23]``, with folders if two files have the same name. No name
    contains a slash: in a tag, it would end the name."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, int], str] = {}
        self._paths: dict[str, str] = {}

    def name(self, path: str, number: int) -> str:
        """Return the name of line ``number`` of ``path``."""
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
    """Choice of calls by regular expressions on the lines of their stacks; all calls if there are no expressions.

    Each stack is searched only once, since an expression may be slow.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [re.compile(pattern) for pattern in patterns]
        self._known: dict[Stack, bool] = {}

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def choose(self, calling: Stack) -> bool:
        """Return whether calls from this stack are chosen."""
        known = self._known.get(calling)
        if known is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            lines = [text(line)[-LINE_LENGTH:] for line in calling]
            known = any(pattern.search(line) for line in lines for pattern in self._patterns)
            self._known[calling] = known
        return known


def callers() -> Iterator[FrameType]:
    """Yield the frames of the calling functions, the nearest first.

    Frames of other threads are left out: ``sys._current_frames`` may wait for ever, and may return frames that no
    longer exist (Python 3.11, https://github.com/python/cpython/issues/106883).
    """
    frame = sys._getframe(1).f_back
    while frame is not None:
        yield frame
        frame = frame.f_back


def machinery(module: object) -> CodeType | None:
    """Return the code by which the framework calls modules: that of the outermost class with a ``__call__``."""
    calls = [vars(each).get("__call__") for each in reversed(type(module).__mro__)]
    codes = (getattr(call, "__code__", None) for call in calls)
    return next((code for code in codes if isinstance(code, CodeType)), None)
