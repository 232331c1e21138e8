"""An engine that cuts pieces further and does them in any order, for tests of results that do not depend on it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from probe.core.analysis.pieces import Piece, halved

R = TypeVar("R")


class CutEngine:
    """This process; pieces are halved until there are ``number`` of them, as far as they can be, and shuffled.

    Args:
        failing: the ranks of which every piece fails.
    """

    width = 1

    def __init__(self, number: int, seed: int = 0, failing: Iterable[int] = ()) -> None:
        self._number, self._random, self._failing = number, random.Random(seed), frozenset(failing)

    def each(self, function: Callable[[Piece], R], pieces: Iterable[Piece]) -> Iterator[tuple[Piece, R | Exception]]:
        cut = self._cut(list(pieces))
        self._random.shuffle(cut)
        for piece in cut:
            if self._failing & {*piece.ranks}:
                yield piece, OSError("the machine is gone")
            else:
                yield piece, function(piece)

    def _cut(self, pieces: list[Piece]) -> list[Piece]:
        whole: list[Piece] = []
        waiting = list(pieces)
        while waiting and len(whole) + len(waiting) < self._number:
            piece = waiting.pop(0)
            halves = halved(piece)
            waiting += halves
            whole += [] if halves else [piece]
        return whole + waiting
