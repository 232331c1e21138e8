"""Verdict about a run: made once from everything that was judged while it ran, and printed by whoever reports it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from probe.core.checks.check import Grade
from probe.core.hindsight.onset import Onset, on_rank, rarer
from probe.core.language import Message, joined, message
from probe.core.naming import SIGNALS, signal_of
from probe.core.storage.layout import ranks_text

Certainty = Literal["certain", "first recorded", "place unknown"]
"""``first recorded``: steps before it were not recorded; ``place unknown``: it may have begun elsewhere."""
MOST_NUMBERS = 3
MOST_NAMED = 3
SWITCH_ON = 'record activations: `probe run --deep`, or "xy_distribution": true and "all_xy": true in a configuration'
"""Advice where the layer cannot be named."""
EVERY_STEP = (
    'record activations at every step: `probe run --deep`, or "step_interval": 1, "xy_distribution": true and '
    '"all_xy": true in a configuration'
)
"""Advice where it cannot be named because steps were not recorded."""
NON_FINITE = ("NaN", "Inf")
OVERFLOW = "overflow"
"""Finite number so large that a product with it is not finite: the NaN or Inf of the step follows from it."""
TRACED, UPDATED = "loss-not-finite", "gradient-not-finite"
"""Finding whose place, if it has one, is what the graph of its step shows, and one about gradients of an update."""


class JudgedFinding(NamedTuple):
    """Finding of a check, or of a rule about numbers of the run or about rows, in one form."""

    grade: Grade
    kind: str
    where: tuple[str, ...]
    """Layers, parameters or numbers that it is about; empty for the whole loop."""
    step: int
    since: int
    """First step at which it was so, as far as was seen."""
    text: str
    """One sentence."""
    evidence: Mapping[str, float] = {}
    ranks: tuple[int, ...] = ()
    remedy: str = ""
    """One sentence; empty if none is known."""
    located: bool = True
    """False if it shows at ``where`` and may have begun in something that was not recorded."""
    after: int | None = None
    """Last recorded step before ``since``; None if every step was looked at."""
    onset: Onset | None = None
    """Answer of the search for its cause in the steps before; None if none was made."""
    signal: str = ""
    """Signal of the row that it is about, which is the first of ``where``; empty if it is about none."""

    @property
    def is_non_finite(self) -> bool:
        """True if it is about a NaN or an infinity."""
        return self.kind in NON_FINITE or not all(map(math.isfinite, self.evidence.values()))


class DeepSteps(NamedTuple):
    """Steps in which everything was collected after the sentinel had found something, and what their rows show."""

    kinds: tuple[str, ...]
    """Kinds of what was found."""
    found: int
    """Step at which the first of it was found."""
    first: int
    last: int
    step: int = -1
    """First of the steps with a number that is not finite; -1 if there is none."""
    module: str = ""
    """Module in which it shows first."""
    row: str = ""
    """Row of that number."""
    forward: bool = False
    """True if it was computed in a forward, or is a weight."""
    spoilt: int | None = None
    """Last step whose update may have spoilt the weights that were collected; None if they were finite."""

    def text(self) -> str:
        """Return the steps as a clause."""
        kinds = joined(", ", map(message, self.kinds))
        if self.first == self.last:
            return message("collected deep at step {step} ({kinds})", step=self.first, kinds=kinds)
        text = "collected deep at steps {first} to {last} ({kinds})"
        return message(text, first=self.first, last=self.last, kinds=kinds)

    def concern(self, finding: JudgedFinding) -> bool:
        """Return whether they may show where a finding about numbers that are not finite has begun."""
        since = self.step if self.spoilt is None else self.spoilt
        non_finite = finding.is_non_finite or finding.kind == UPDATED
        return non_finite and self.found <= finding.step <= self.last and finding.since <= since

    def explain(self, finding: JudgedFinding) -> JudgedFinding:
        """Return a finding with the module that the rows name; with the reason if they name none: once an update has
        spoilt the weights, numbers are not finite in innocent modules, too."""
        if (
            self.spoilt is not None
            and finding.where
            and finding.located
            and (finding.kind in NON_FINITE or finding.kind == TRACED)
        ):
            return finding  # its own row or the graph of its step has named the place
        if self.spoilt is not None:
            spoilt = message(
                "the weights were already spoilt, by an update up to step {step}, when more was collected, so that "
                "later steps name no module",
                step=self.spoilt,
            )
            return finding._replace(text=joined("; ", [finding.text, spoilt]))
        if finding.kind == TRACED and not self.forward:
            shown = (
                "at step {step}, with finite weights, each number that a module returned is finite: it lies in the loss"
            )
            return finding._replace(text=joined("; ", [finding.text, message(shown, step=self.step)]))
        shown = "at step {step}, with finite weights, it shows first in {row}"
        text = joined("; ", [finding.text, message(shown, step=self.step, row=self.row)])
        if finding.kind in NON_FINITE and finding.located:
            return finding._replace(text=text)
        walked = finding.where if finding.kind == TRACED else ()
        where = tuple(dict.fromkeys((self.module or self.row, *walked)))
        return finding._replace(text=text, where=where, located=True)


class Looked(NamedTuple):
    """Parts of a run that were looked at, and those that were not."""

    at: tuple[str, ...] = ()
    """Noun phrases, such as ``gradients in 24 of 202 steps``."""
    not_at: tuple[str, ...] = ()
    """Noun phrases, such as ``activations``."""


class Verdict(NamedTuple):
    """First cause of what was found, as far as the recorded numbers name it."""

    kind: str
    """Empty if nothing was found."""
    grade: Grade | None
    where: tuple[str, ...]
    ranks: tuple[int, ...]
    step: int | None
    """Step at which it was found."""
    since: int | None
    certainty: Certainty | None
    text: str
    evidence: Mapping[str, float]
    """Three numbers at most."""
    looked: Looked
    before: tuple[str, ...]
    """Sentences about what came before."""
    after: int | None
    """Last recorded step before ``since``, if steps between were not recorded."""
    next_steps: tuple[str, ...]
    command: str
    """Command that shows more; empty if nothing was written."""
    more: int
    """Further criticals and warnings."""
    notes: int
    onset: Onset | None = None
    """Answer of the search for the cause in the steps before; None if none was made."""
    signal: str = ""
    """Signal of the row that is named; empty if none is."""
    noted: tuple[str, ...] = ()
    """Sentences of the first notes, where nothing else was found."""

    def cell(self) -> dict[str, object]:
        """Return the place that a page opens: the cell of the row that is named, else the step."""
        row = {"signal": self.signal, "op": next(iter(self.evidence), ""), "row": self.where[0]} if self.signal else {}
        return {**row, **({} if self.since is None else {"step": self.since})}

    def line(self) -> Message:
        """Return the verdict as one clause."""
        if not self.kind:
            return joined("; ", self._looked())
        more = [message("and {number} more", number=self.more)] if self.more else []
        before = [self.onset.text()] if self.onset is not None and self.onset.where else []
        head = joined(", ", [joined(": ", [message(self.grade or ""), self.head()]), *more])
        return joined("; ", [head, *before])

    def lines(self, change: str = "", picture: Sequence[str] = ()) -> list[str]:
        """Return the verdict for a terminal: what and where, the numbers, what is not known, and what to do next.

        Args:
            change: clause about a number before and after, in place of the numbers of the finding.
            picture: lines of the rows around the place.
        """
        if not self.kind:
            return [*self._looked(), *(message("note (may be intended): {text}", text=text) for text in self.noted)]
        numbers = joined(", ", [joined(" ", [message(name), _number(value)]) for name, value in self.evidence.items()])
        lines = [joined(": ", [message(self.grade or ""), self.head()]), self.text]
        lines += [*filter(None, [change or numbers]), *picture, *self._limits()]
        lines += [message("before it: {text}", text=text) for text in self.before[:1]]
        if self.more or self.notes:
            lines.append(self._others())
        return [*lines, *(message("next: {text}", text=text) for text in self._advice())]

    def _limits(self) -> Iterator[str]:
        """Yield what the recorded numbers do not say, and what those before say."""
        if self.certainty == "place unknown" and self.after is None:
            yield message("the layer in which it began cannot be named: activations were not recorded")
        elif self.certainty == "place unknown":
            text = "the layer in which it began cannot be named: steps {first} to {last} were not recorded"
            yield message(text, first=(self.after or 0) + 1, last=(self.since or 0) - 1)
        if self.onset is not None and self.onset.where:
            yield message("looking back: {text}", text=self.onset.text())

    def _advice(self) -> list[str]:
        more = [message("`{command}` shows more", command=self.command)] if self.command else []
        return [*map(message, self.next_steps[:2]), *more]

    def as_json(self) -> dict[str, Any]:
        """Return the verdict as values that JSON can hold."""
        fields = self._asdict()
        numbers = {name: _plain(value) for name, value in self.evidence.items()}
        onset = None if self.onset is None else self.onset._asdict()
        return {**fields, "evidence": numbers, "looked": self.looked._asdict(), "onset": onset, "lines": self.lines()}

    def head(self) -> Message:
        """Return kind, place, step and ranks as a clause."""
        kind, names = message(self.kind), ", ".join(self.where[:MOST_NAMED])
        names += ", ..." if len(self.where) > MOST_NAMED else ""
        if not names:
            place = kind
        elif (ends := self._ends()) is not None:
            place = message("{kind} between {one} and {other}", kind=kind, one=ends[0], other=ends[1])
        elif self.certainty == "place unknown":
            place = message("{kind}, first seen in {names}", kind=kind, names=names)
        else:
            place = message("{kind} in {names}", kind=kind, names=names)
        at = message("step {step}", step=self.since)
        if self.after is not None:
            at = message("between steps {first} and {last}", first=self.after, last=self.since)
        elif self.step != self.since:
            at = message("step {step} (found at {found})", step=self.since, found=self.step)
        return joined(", ", [place, at, *([on_ranks(self.ranks)] if self.ranks else [])])

    def _ends(self) -> tuple[str, str] | None:
        """Return the two ends of a stretch in which it began; None if it began in what is named."""
        one, other = self.where[0], self.where[-1]
        if len(self.where) == 2 and (f"between `{one}` and `{other}`" in self.text or f"it and `{other}`" in self.text):
            return one, other
        if len(self.where) == 1 and f"between `{one}` and the loss" in self.text:
            return one, message("the loss")
        if len(self.where) == 1 and f"between the input and `{one}`" in self.text:
            return message("the input"), one
        return None

    def _looked(self) -> list[Message]:
        not_at = [message("not looked at: {what}", what=_listed(self.looked.not_at))] if self.looked.not_at else []
        return [self._looked_at(), *not_at]

    def _looked_at(self) -> Message:
        if not self.looked.at:
            return message("nothing was looked at")
        nothing = message("nothing found in {what}", what=_listed(self.looked.at))
        return joined(", ", [nothing, *([_notes(self.notes)] if self.notes else [])])

    def _others(self) -> Message:
        one = "{number} more finding" if self.more == 1 else "{number} more findings"
        parts = [message(one, number=self.more)] if self.more else []
        parts += [_notes(self.notes)] if self.notes else []
        return message("{first} and {second}", first=parts[0], second=parts[1]) if len(parts) > 1 else parts[0]


def _notes(number: int) -> Message:
    return message("{number} note" if number == 1 else "{number} notes", number=number)


def on_ranks(ranks: Sequence[int]) -> Message:
    """Return ranks as a phrase."""
    return message("rank {ranks}" if len(ranks) == 1 else "ranks {ranks}", ranks=ranks_text(ranks))


def verdict_of(
    findings: Iterable[JudgedFinding], looked: Looked, command: str = "", deep: Iterable[DeepSteps] = ()
) -> Verdict:
    """Return the verdict about a run: the first critical finding or, without one, the first warning.

    Args:
        findings: those of one step in causal order.
        command: command that shows more.
        deep: steps in which everything was collected.
    """
    every = [*findings]
    grave = [each for each in every if each.grade == "critical"]
    warnings = [each for each in every if each.grade == "warning"]
    notes = len(every) - len(grave) - len(warnings)
    first = min(grave or warnings, key=_order, default=None)
    if first is None:
        noted = tuple(
            message("{kind}, step {step}: {text}", kind=each.kind, step=each.since, text=each.text)
            for each in sorted(every, key=_order)[:MOST_NAMED]
        )
        return Verdict("", None, (), (), None, None, None, "", {}, looked, (), None, (), command, 0, notes, noted=noted)
    first = _narrowed(first, grave)
    shown = next((steps for steps in deep if steps.concern(first)), None)
    first = first if shown is None else shown.explain(first)
    earlier = sorted((each for each in warnings if grave and each.since < first.since), key=_order)
    named_later = shown is not None and shown.spoilt is None and shown.step > first.since
    steps_missing = first.after is not None and first.after < first.since - 1
    unplaced = first.is_non_finite and not first.located
    certainty: Certainty = "place unknown" if unplaced else "certain"
    if not unplaced and (steps_missing or named_later):
        certainty = "first recorded"
    advice = [EVERY_STEP if steps_missing else SWITCH_ON] if unplaced else []
    advice += [first.remedy] if first.remedy else []
    return Verdict(
        kind=first.kind,
        grade=first.grade,
        where=first.where,
        ranks=first.ranks,
        step=first.step,
        since=first.since,
        certainty=certainty,
        text=first.text,
        evidence=dict([*first.evidence.items()][:MOST_NUMBERS]),
        looked=looked,
        before=tuple(message("{text} (step {step})", text=each.text, step=each.since) for each in earlier),
        after=first.after if steps_missing else None,
        next_steps=tuple(advice),
        command=command,
        more=len(grave) + len(warnings) - 1,
        notes=notes,
        onset=first.onset,
        signal=first.signal,
    )


def united(findings: Sequence[tuple[int, JudgedFinding]]) -> list[JudgedFinding]:
    """Return findings of several ranks, equal ones once with all their ranks.

    Args:
        findings: each with the rank that judged.
    """
    found: dict[tuple[object, ...], JudgedFinding] = {}
    for rank, finding in findings:
        key = (finding.kind, finding.grade, finding.where, finding.since)
        ranks = finding.ranks or ((rank,) if rank >= 0 else ())
        before = found.get(key, finding._replace(ranks=(), onset=None))
        onset = rarer(before.onset, finding.onset if rank < 0 else on_rank(finding.onset, rank))
        found[key] = before._replace(ranks=tuple(sorted({*before.ranks, *ranks})), onset=onset)
    return [*found.values()]


def _narrowed(traced: JudgedFinding, findings: Iterable[JudgedFinding]) -> JudgedFinding:
    """Return a row of the same step in a module that the graph names, in place of the graph's two modules."""
    if traced.kind != TRACED or len(traced.where) < 2:
        return traced
    modules = tuple(f"{module}." for module in traced.where)
    kinds = (*NON_FINITE, OVERFLOW)
    rows = [row for row in findings if row.kind in kinds and row.located and row.since == traced.since]
    inside = min((row for row in rows if row.where and row.where[0].startswith(modules)), key=_order, default=None)
    if inside is None:
        return traced
    # a module without parameters between the two, whose rows come before it
    return min((row for row in rows[: rows.index(inside) + 1] if row.ranks == inside.ranks), key=_order)


def _order(finding: JudgedFinding) -> tuple[int, bool, bool, bool, int]:
    seen = finding.located or finding.signal  # a row says more than a number of the run
    return finding.since, not (finding.located and finding.where), not finding.where, not seen, _phase(finding)


def _phase(finding: JudgedFinding) -> int:
    """Return when in its step a number that is not finite was computed: a forward on one rank comes before the reduced
    gradients of the others, which it has spoilt."""
    forward = SIGNALS["actv"].phase
    if finding.kind == UPDATED:
        return SIGNALS["grad_reduced"].phase
    return max(forward, signal_of(finding.signal).phase) if finding.signal and finding.is_non_finite else forward


def _listed(names: Sequence[str]) -> str:
    if len(names) < 2:
        return joined("", names)
    return message("{names} and {last}", names=joined(", ", names[:-1]), last=names[-1])


def _number(value: float) -> str:
    return f"{value:.4g}"


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
