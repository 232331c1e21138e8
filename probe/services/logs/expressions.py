"""Regular expressions over bytes that take linear time on any input.

Every expression is in the language of RE2, and every repetition in it is bounded, so that Python's own engine does a
bounded amount of work at each position too; a test holds both. RE2, of the package ``google-re2``, searches large
blocks many times faster; Python's engine is faster on a short line. Each is used where it is faster, with the same
results.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

SHORT = 2_048
"""Length of a text in bytes from which RE2 searches it, where it is installed."""


@cache
def re2_module() -> Any:
    """The module ``re2``, or None if it is not installed."""
    try:
        import re2  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        return None
    return re2


class Expression:
    """Regular expression that is compiled when it is first used."""

    __slots__ = ("_fast", "_python", "pattern")

    def __init__(self, pattern: bytes) -> None:
        self.pattern = pattern
        self._python: Any = None
        self._fast: Any = None

    def search(self, text: bytes, start: int = 0, end: int | None = None) -> Any:
        """Return the first match in ``text``, or None."""
        size = len(text)
        stop = size if end is None or end > size else end
        engine = self._python if stop - start < SHORT else self._fast
        return (engine or self._engine(stop - start)).search(text, start, stop)

    def match(self, text: bytes) -> Any:
        """Return the match at the beginning of ``text``, or None."""
        return self._engine(len(text)).match(text)

    def findall(self, text: bytes) -> list[Any]:
        """Return the groups of every match in ``text``."""
        found: list[Any] = self._engine(len(text)).findall(text)
        return found

    def finditer(self, text: bytes) -> Iterator[Any]:
        """Yield every match in ``text``."""
        matches: Iterator[Any] = self._engine(len(text)).finditer(text)
        return matches

    def replace(self, text: bytes, by: bytes | Callable[[Any], bytes]) -> bytes:
        """Return ``text`` with ``by`` instead of every match."""
        replaced: bytes = python_engine(self.pattern).sub(by, text)
        return replaced

    def _engine(self, length: int) -> Any:
        if length < SHORT:
            self._python = self._python or python_engine(self.pattern)
            return self._python
        self._fast = self._fast or fast_engine(self.pattern)
        return self._fast


@cache
def python_engine(pattern: bytes) -> Any:
    """``pattern`` compiled by Python's module ``re``."""
    return re.compile(pattern)


@cache
def fast_engine(pattern: bytes) -> Any:
    """``pattern`` compiled by RE2, or by Python where RE2 is not installed."""
    module = re2_module()
    if module is None:
        return python_engine(pattern)
    options = module.Options()
    options.encoding = module.Options.Encoding.LATIN1  # else no expression matches a byte that is not UTF-8
    return module.compile(pattern, options)


class Words(Expression):
    """Expression of many words in lower case, which are found in upper case too."""

    __slots__ = ("_low", "_text")

    def __init__(self, pattern: bytes) -> None:
        super().__init__(pattern)
        self._text = self._low = b""

    def find(self, text: bytes, start: int = 0) -> int:
        """Return where the first match in ``text`` begins, or -1."""
        if re2_module() is None:  # Python's engine is ten times faster if it does not ignore case itself
            if text is not self._text:
                self._text, self._low = text, text.lower()
            found = python_engine(self.pattern).search(self._low, start)
        else:
            found = fast_engine(b"(?i)" + self.pattern).search(text, start)
        return -1 if found is None else int(found.start())


def any_of(words: Iterable[bytes], instead: Mapping[bytes, bytes] | None = None) -> Words:
    """Expression that finds any of some literal ``words``, in upper or lower case.

    Args:
        words: The words, in lower case.
        instead: Expressions that are searched for instead of some of them.
    """
    replaced = instead or {}
    return Words(b"|".join(sorted({replaced.get(word, re.escape(word)) for word in words})))
