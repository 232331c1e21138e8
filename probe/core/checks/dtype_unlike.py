"""Check for a module whose output has another dtype than those at the same place in other blocks."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

from probe.core.checks.check import CheckFinding, JudgedUpdate
from probe.core.checks.loop_check import FactCheck
from probe.core.checks.parameter_use import ParameterUse
from probe.core.checks.places import listing, module_of
from probe.core.language import message

NUMBER = re.compile(r"\.\d+(?=\.)|^\d+(?=\.)")


class DtypeUnlike(FactCheck):
    """Report modules with parameters whose output is in float32, while that at the same place in other blocks is in
    half precision.

    Blocks are what a list of modules numbers. Modules without parameters pass on the dtype of their inputs; norms are
    all alike.
    """

    name = "dtype-unlike"
    title = "Another dtype"
    why = "The module costs time and memory, and its numbers differ from those of the same layer elsewhere."
    source = "https://github.com/Lightning-AI/lightning-thunder/issues/725"
    sees = "dtypes of the operations that use the parameters, in the graph of a loss now and then"
    remedy = "Compute the module under the same autocast as the others, unless it is kept in float32 by intention."
    lacks = "no graph of a loss was seen"

    def __init__(self) -> None:
        super().__init__()
        self._uses: Mapping[str, ParameterUse] = {}
        self._reported: frozenset[str] = frozenset()

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        if not facts.uses:
            return
        self.judged = True
        if facts.uses is self._uses:
            return
        self._uses = facts.uses
        dtypes = {module_of(name): facts.uses[name].dtype for name in facts.names if name in facts.uses}
        unlike = tuple(unlike_ones(dtypes))
        if not set(unlike) <= self._reported:
            self._reported |= set(unlike)
            text = message(
                "the output of {places} is in float32, that at the same place in other blocks is not",
                places=listing(unlike),
            )
            yield self.finding(facts, facts.step, text, {"modules": len(unlike)}, unlike)


def unlike_ones(dtypes: Mapping[str, str]) -> Iterator[str]:
    """Yield the modules with an output in float32 of which most at the same place in other blocks are in half
    precision, or the other one of two."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for name in dtypes:
        numbers = list(NUMBER.finditer(name))
        if numbers:
            places[f"{name[: numbers[-1].start()]}.*{name[numbers[-1].end() :]}"].append(name)
    for names in places.values():
        single = [name for name in names if dtypes[name].lower().endswith("float32")]
        half = [name for name in names if dtypes[name].lower().endswith("float16")]
        if len(single) + len(half) == len(names) and half and len(single) <= max(1, len(names) // 3):
            yield from single
