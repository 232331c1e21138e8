"""Check for a module whose output has another dtype than those at the same place in other blocks."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from probe.core.checks.check import CheckFinding, JudgedUpdate
from probe.core.checks.loop_check import UnusualCheck
from probe.core.checks.places import listing

LEAST = 3
"""Modules at the same place."""
NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.)")


class DtypeUnlike(UnusualCheck):
    """Note modules of repeated blocks whose output has another dtype than that of most at the same place.

    Of two modules, which may both be right, the one in float32 is named if the other is in half precision.
    """

    name = "dtype-unlike"
    title = "Another dtype"
    source = "https://github.com/Lightning-AI/lightning-thunder/issues/725"
    sees = "dtypes of the outputs of modules that are hooked anyway"
    remedy = "Compute the module under the same autocast as the others, unless it is kept in float32 by intention."
    lacks = "no output of a module was seen"

    def __init__(self) -> None:
        super().__init__()
        self._dtypes: Mapping[str, str] = {}
        self._reported: frozenset[str] = frozenset()

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        if not facts.dtypes:
            return
        self.judged = True
        if facts.dtypes is self._dtypes or facts.dtypes == self._dtypes:
            return
        self._dtypes = facts.dtypes
        unlike = tuple(unlike_ones(facts.dtypes))
        if not set(unlike) <= self._reported:
            self._reported |= set(unlike)
            kinds = sorted({facts.dtypes[name] for name in unlike})
            text = f"{listing(unlike)}: the output is {', '.join(kinds)}, that of modules at the same place is not"
            yield self.finding(facts, facts.step, text, {"modules": len(unlike)}, unlike)


def unlike_ones(dtypes: Mapping[str, str]) -> Iterator[str]:
    """Yield the modules whose output has another dtype than that of most at the same place in repeated blocks."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for name in dtypes:
        place = NUMBER.sub("*", name)
        if place != name:
            places[place].append(name)
    for names in places.values():
        counts = Counter(dtypes[name] for name in names).most_common()
        if len(counts) != 2:
            continue
        (usual, most), (_, few) = counts
        if len(names) >= LEAST and 3 * few <= len(names) and few < most:
            yield from (name for name in names if dtypes[name] != usual)
        elif len(names) == 2:
            half = [dtypes[name].lower().endswith("float16") for name in names]
            yield from (
                name for name, is_half in zip(names, half, strict=True) if half.count(True) == 1 and not is_half
            )
