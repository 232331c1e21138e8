"""Answer of a search backwards from an incident."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from probe.core.language import Message, message
from probe.core.messages import printable

RARE = 0.05
"""Largest share of other steps before which as much stands out, for something to be named."""


LATE = frozenset(
    {
        *("loss-not-finite", "gradient-not-finite", "loss-leap", "gradient-leap", "gradient-gone"),
        *("turning-unstable", "replicas-differ", "rank-unlike-peers"),
    }
)
"""Kinds of findings whose cause may have begun earlier: others are about what a program does, which is the cause."""


class Onset(NamedTuple):
    """Row that left its level before an incident and stayed away until it, if there is one."""

    looked: int = 0
    """Samples that were looked at before the incident; 0 if too few are recorded."""
    where: str = ""
    """Name of the row; empty if nothing stood out."""
    signal: str = ""
    step: int = -1
    """First step at which it was away."""
    samples: int = 0
    """Number of samples for which it was away, up to the incident."""
    factor: float = 1.0
    """Norm at the last of them over its level before."""
    chance: float = 1.0
    """Share of other steps before which as much stands out."""
    ranks: tuple[int, ...] = ()
    """Ranks whose rows these are; empty for the one that judged."""

    def text(self) -> Message:
        """Return the answer as a clause."""
        if not self.looked:
            return message("too few samples before it are recorded to look back")
        if not self.where:
            return message("nothing stood out before")
        return message(
            "began in {where} at step {step}{ranks}: {factor:.3g} times its norm before (away for {number} samples; "
            "chance {chance:.1f} %)",
            where=printable(self.where),
            step=self.step,
            ranks=_on(self.ranks),
            factor=self.factor,
            number=self.samples,
            chance=100 * self.chance,
        )

    def as_json(self) -> dict[str, Any]:
        """Return the answer as values that JSON can hold, with its text."""
        return {**self._asdict(), "ranks": list(self.ranks), "text": str(self.text())}

    @classmethod
    def of(cls, fields: Mapping[str, Any] | None) -> Onset | None:
        """Parse an answer from JSON; None stays None.

        Raises:
            TypeError, KeyError, ValueError: if it is something else.
        """
        if fields is None:
            return None
        whole = {name: int(fields[name]) for name in ("looked", "step", "samples")}
        texts = {name: str(fields[name]) for name in ("where", "signal")}
        numbers = {name: float(fields[name]) for name in ("factor", "chance")}
        return cls(**whole, **texts, **numbers, ranks=tuple(map(int, fields["ranks"])))  # type: ignore[arg-type]


def on_rank(onset: Onset | None, rank: int) -> Onset | None:
    """Return an answer with the rank whose rows it is about."""
    return onset if onset is None or not onset.where or onset.ranks else onset._replace(ranks=(rank,))


def rarer(first: Onset | None, second: Onset | None) -> Onset | None:
    """Return the answer that names what more rarely stands out; of equal ones, the earlier. Ranks whose same row left
    in one step are joined."""
    if first is None or second is None:
        return first or second
    place, other_place = ((onset.where, onset.signal, onset.step) for onset in (first, second))
    if first.where and place == other_place:
        rarest = min(first, second, key=lambda onset: onset.chance)
        return rarest._replace(ranks=tuple(sorted({*first.ranks, *second.ranks})))
    return min(first, second, key=lambda onset: (not onset.where, onset.chance, onset.step, -onset.looked))


def _on(ranks: tuple[int, ...]) -> str:
    return f" on {'rank' if len(ranks) == 1 else 'ranks'} {','.join(map(str, ranks))}" if ranks else ""
