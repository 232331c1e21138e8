"""Check for a parameter that changes between updates though nothing has written it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from probe.core.checks.check import CheckFinding, Grade, JudgedUpdate
from probe.core.checks.loop_check import ChangeCheck
from probe.core.checks.places import ancestors, listing
from probe.core.checks.update_facts import count_of, is_any
from probe.core.language import message

QUIET = 10
"""Updates before it in which no parameter was written so."""
KNOWN = 4
"""Parameters whose numbers must be known."""
FLIPPED = 2
"""Elements that differ at most."""
SETTLED = 50
"""Updates before it in which no parameter was written at all."""


class WrittenBetweenUpdates(ChangeCheck):
    """Report parameters whose numbers differ from those after the last update.

    Of one parameter it is reported if no operation has written it: a flipped bit, or a write past the framework.
    Programs that write so write several, or write again and again, such as a weight that is clamped or normalised after
    each update; or many elements of one now and then, such as unused codes of a codebook, so that the change must be
    of one or two elements. A parameter of a single element is left out, which programs clamp as it reaches a bound.

    Of all parameters it is reported if operations have written them for the first time after fifty updates: an average
    of the weights, or another model's, that was put in for an evaluation and not taken out again. A checkpoint that is
    loaded has another count of steps, and the best weights that are loaded again are those after an earlier update;
    ranks whose gradients no wrapper averages may average their weights; what is written again and again is a note.
    """

    name = "written-between-updates"
    title = "Changed between updates"
    why = (
        "Something other than the optimizer has changed the weights: a fault of memory, or averages that were "
        "left in the model."
    )
    source = "https://arxiv.org/abs/2407.21783"
    sees = "numbers of a part of the parameters after one update and before the next, and their versions"
    remedy = (
        "If the program wrote them, put the weights of before back after an evaluation. If nothing did, compare the "
        "rank's memory and its device's error counters with others, go back to a checkpoint of before, and take the "
        "node out if it happens again."
    )
    lacks = "no parameter's numbers were known from one update to the next"

    def __init__(self) -> None:
        super().__init__()
        self._quiet = self._settled = 0
        """Updates in a row without a write by nothing, and without any."""
        self._noted = self._reported = False
        self._steps: int | None = None

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        values, before = update.facts.values, self._steps
        self._steps = update.facts.state_steps
        if values is None or not is_any(values.known):
            return
        number = count_of(values.known)
        self.judged |= number >= KNOWN
        if not is_any(values.written):
            self._quiet, self._settled = self._quiet + 1, self._settled + 1
            return
        changed = values.written & values.known
        # what is given to ``data`` shows no write; ranks average their weights so
        settled = self._settled >= SETTLED and number >= KNOWN and update.facts.world == 1
        every = settled and bool(changed[values.known].all())
        seen, secret = changed & (values.seen_write | every), changed & ~(values.seen_write | every)
        if seen.any():
            loaded = values.restored or (before is not None and self._steps != before + 1)
            apart = update.facts.world > 1 and not update.facts.reduced
            whole = bool(seen[values.known].all()) and not loaded and not apart
            yield from self._seen(update, values.looked[seen], whole)
        if secret.any() and self._quiet >= QUIET and number >= KNOWN and int(secret.sum()) == 1:
            yield from self._flip(update, int(np.flatnonzero(secret)[0]), number)
        self._quiet = 0 if secret.any() else self._quiet + 1
        self._settled = 0 if changed.any() else self._settled + 1

    def _seen(self, update: JudgedUpdate, positions: npt.NDArray[np.int64], whole: bool) -> Iterator[CheckFinding]:
        """Report what operations have written, the first time."""
        grave = whole and self._settled >= SETTLED and len(positions) >= KNOWN and not self._reported
        if self._noted and not grave:
            return
        self._noted, self._reported = True, self._reported or grave
        facts, number = update.facts, len(positions)
        where = () if grave else ancestors([facts.names[position] for position in positions], facts.names)
        text = (
            message(
                "the program has written all {number} parameters that were looked at between the last update and "
                "this one, for the first time in {settled} updates",
                number=number,
                settled=self._settled,
            )
            if grave
            else message("the program writes parameters between updates: {places}", places=listing(where))
        )
        grade: Grade = "warning" if grave else "note"
        yield self.finding(facts, facts.step, text, {"parameters": number}, where, grade)

    def _flip(self, update: JudgedUpdate, place: int, number: int) -> Iterator[CheckFinding]:
        facts, values = update.facts, update.facts.values
        assert values is not None, "the caller has looked"
        position = int(values.looked[place])
        elements = FLIPPED if values.elements is None else int(values.elements[place])
        if not 0 < elements <= FLIPPED or (facts.sizes and facts.sizes[position] < 2):
            return
        name = facts.names[position]
        text = message(
            "{name} has changed between the last update and this one, and no operation has written it; {number} "
            "others that were looked at are as they were",
            name=name or message("a parameter without a name"),
            number=number - 1,
        )
        evidence = {"known": number} | ({} if values.elements is None else {"elements": elements})
        yield self.finding(facts, facts.step, text, evidence, tuple(filter(None, [name])))
