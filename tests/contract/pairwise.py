"""Cases in which every two values meet that can: a small part of all combinations."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import combinations, product
from typing import Any

Case = tuple[Any, ...]
Pair = frozenset[tuple[int, Any]]


def pairs_of(case: Case) -> set[Pair]:
    """Every two of a case's values, with their places."""
    return set(map(frozenset, combinations(enumerate(case), 2)))


def pairwise(*values: Sequence[Any], possible: Callable[..., bool]) -> list[Case]:
    """As many of the ``possible`` combinations of ``values`` as it takes for every two values to meet that meet in any.
    The same every time."""
    cases = [case for case in product(*values) if possible(*case)]
    random.Random(0).shuffle(cases)
    left, taken = {pair for case in cases for pair in pairs_of(case)}, []
    for least in range(len(values) * (len(values) - 1) // 2, 0, -1):
        for case in cases:
            if len(new := pairs_of(case) & left) >= least:
                taken.append(case)
                left -= new
    return sorted(taken, key=lambda case: [each.index(value) for each, value in zip(values, case, strict=True)])
