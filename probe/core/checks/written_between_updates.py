"""Check for a parameter that changes between updates though nothing has written it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from probe.core.checks.check import CheckFinding, JudgedUpdate
from probe.core.checks.loop_check import ChangeCheck
from probe.core.checks.places import ancestors, listing

QUIET = 10
"""Updates before it in which no parameter was written so."""
KNOWN = 4
"""Parameters whose numbers must be known."""
FLIPPED = 2
"""Elements that differ at most, where their number is known."""


class WrittenBetweenUpdates(ChangeCheck):
    """Report one parameter whose numbers differ from those after the last update, though no operation has written it.

    Programs that write parameters past the framework write several, or write again and again, such as a weight that is
    clamped or normalised after each update. A parameter of a single element is left out, which programs clamp as it
    reaches a bound. A note is made where operations of the framework write parameters between updates.
    """

    name = "written-between-updates"
    title = "Parameter changed by nothing"
    source = "https://arxiv.org/abs/2407.21783"
    sees = "numbers of a part of the parameters after one update and before the next, and their versions"
    remedy = (
        "Compare the rank's memory and its device's error counters with others; go back to a checkpoint of before, and "
        "take the node out if it happens again."
    )
    lacks = "no parameter's numbers were known from one update to the next"

    def __init__(self) -> None:
        super().__init__()
        self._quiet = 0
        self._noted = False

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        values = update.facts.values
        if values is None or not values.known.any():
            return
        changed = values.written & values.known
        secret, number = changed & ~values.seen_write, int(values.known.sum())
        self.judged |= number >= KNOWN
        if (changed & values.seen_write).any() and not self._noted:
            self._noted = True
            yield self._note(update, values.looked[changed & values.seen_write])
        if not secret.any():
            self._quiet += 1
            return
        quiet, self._quiet = self._quiet, 0
        if quiet >= QUIET and number >= KNOWN and int(secret.sum()) == 1:
            yield from self._flip(update, int(np.flatnonzero(secret)[0]), number)

    def _flip(self, update: JudgedUpdate, place: int, number: int) -> Iterator[CheckFinding]:
        facts, values = update.facts, update.facts.values
        assert values is not None, "the caller has looked"
        position = int(values.looked[place])
        elements = -1 if values.elements is None else int(values.elements[place])
        if elements > FLIPPED or (facts.sizes and facts.sizes[position] < 2):
            return
        name = facts.names[position]
        text = (
            f"{name or 'a parameter without a name'} has changed between the last update and this one, and no "
            f"operation has written it; {number - 1} others that were looked at are as they were"
        )
        evidence = {"known": number} | ({"elements": elements} if elements >= 0 else {})
        yield self.finding(facts, facts.step, text, evidence, tuple(filter(None, [name])))

    def _note(self, update: JudgedUpdate, positions: npt.NDArray[np.int64]) -> CheckFinding:
        names = [update.facts.names[position] for position in positions]
        where = ancestors(names, update.facts.names)
        text = f"the program writes parameters between updates: {listing(where)}"
        return self.finding(update.facts, update.facts.step, text, {"parameters": len(names)}, where, "note")
