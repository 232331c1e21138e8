"""Problems with files: each is recorded once, by file and line, while the rest is read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from probe.core.language import joined, message
from probe.core.messages import in_number, printable
from probe.core.storage.location import Place

MOST = 1000
"""Problems that are kept; more are counted."""
NAMED = 3
"""Lines of a file, or of a piece of it, that are listed one by one; more are counted."""


def left_out(after: int) -> str:
    """Return the end of a message about a line that cannot be read, and the ``after`` lines in its unclosed quotes."""
    if after > 1:
        return message("this line and the next {number} are left out", number=after)
    return message("this line and the next are left out" if after else "this line is left out")


def cannot_be_read(more: int) -> str:
    """Return the message about further lines of a file, which are not listed one by one."""
    singular, plural = (
        "{number} more line cannot be read and is left out",
        "{number} more lines cannot be read and are left out",
    )
    return in_number(more, singular, plural)


class Problem(NamedTuple):
    """One problem with a file or directory."""

    path: Place
    line: int | None
    what: str
    skipped: bool
    """True if data were left out because of it."""

    def __str__(self) -> str:
        where = printable(f"{self.path}{f':{self.line}' if self.line else ''}: ")
        return joined("", (where, self.what if printable(self.what) == self.what else printable(self.what)))


@dataclass
class Problems:
    """All problems, in the order in which they were found."""

    kept: list[Problem] = field(default_factory=list)
    number: int = 0
    skipped: bool = False
    """True if any data were left out."""
    _known: set[Problem] = field(default_factory=set, repr=False, compare=False)

    def add(self, path: Place, what: str, line: int | None = None, /, skipped: bool = True, **values: object) -> None:
        """Record a problem; equal ones count once.

        Args:
            values: those of ``what`` if it is a template.
        """
        what = message(what, **values) if values else what
        problem = Problem(path, line, what, skipped)
        self.skipped |= skipped
        if problem in self._known:
            return
        self.number += 1
        if len(self.kept) < MOST:
            self.kept.append(problem)
            self._known.add(problem)

    def extend(self, others: Problems) -> None:
        """Record the problems of another reader; equal ones count once."""
        for problem in others.kept:
            self.add(problem.path, problem.what, problem.line, problem.skipped)
        self.number += others.number - len(others.kept)
        self.skipped |= others.skipped

    def lines(self, most: int = 20) -> list[str]:
        """Return the first ``most`` problems as lines for people, and the number of the others."""
        texts = [str(problem) for problem in self.kept[:most]]
        rest = self.number - len(texts)
        if not rest:
            return texts
        return [*texts, message("and {number} more problems" if rest > 1 else "and {number} more problem", number=rest)]
