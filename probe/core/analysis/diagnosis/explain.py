"""Paragraph about the first cause: kind, place, step, consequences, and what to look at next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from math import isinf, isnan

from probe.core.analysis.diagnosis.causality import Cause, Incident
from probe.core.analysis.diagnosis.evidence import Evidence
from probe.core.analysis.diagnosis.located_finding import (
    BACKWARD,
    EXCHANGE,
    FORWARD,
    REDUCED,
    STATE,
    UPDATED,
    WEIGHTS,
    Located,
)
from probe.core.analysis.diagnosis.replicas import RULE as REPLICAS
from probe.core.language import Message, joined, message
from probe.core.naming import SIGNALS, signal_of
from probe.core.records import Finding
from probe.core.rules import about
from probe.core.rules.evaluate import HUGE, module_of
from probe.core.storage.layout import cell_name, ranks_text


class Kind(str, Enum):
    """Kind of an incident, by the finding that began it."""

    bad_batch = "bad batch"
    nan = "NaN"
    overflow = "overflow"
    explosion = "exploding gradient"
    spike = "spike"
    collapse = "collapse"
    drift = "drift"
    vanishing = "vanishing gradient"
    dead = "dead layer"
    frozen = "frozen parameter"
    router = "router-collapse"
    replica = "divergence of replicas"
    limit = "value beyond its limit"
    ending = "end of the run"


NAMED = 20
"""Most ranks that a sentence names one by one; of more, as many spans."""

KINDS_OF_TENSOR = {
    WEIGHTS: "weight",
    FORWARD: "activation",
    BACKWARD: "gradient",
    EXCHANGE: "communication",
    REDUCED: "reduced gradient",
    STATE: "optimizer state",
    UPDATED: "updated weight",
}

NEXT: dict[Kind | int, str] = {
    Kind.bad_batch: "the samples of that batch on that rank: their source, lengths, labels and preprocessing",
    Kind.ending: "how the run ended: the log of the rank that stopped first",
    Kind.replica: "the hardware of the rank that differs (memory errors, its device's log), then code that "
    "changes parameters on one rank alone, and random generators that differ in initialisation or dropout",
    Kind.frozen: "the optimizer's parameter groups (learning rate, weight decay), whether the parameter is the one "
    "that the optimizer updates, and whether its updates are lost in rounding in half precision",
    Kind.dead: "the layer's bias and its inputs: a step with a large update that pushed it below 0, a "
    "learning rate too high, or an initialisation that leaves it off",
    Kind.router: "the loss that balances the experts (its weight, whether gradients reach the router through it), the "
    "router's learning rate, and the scale of its logits",
    Kind.vanishing: "the modules between it and the loss: a saturated or dead activation, a detached "
    "tensor, a mask or a scale of 0",
    WEIGHTS: "whatever writes to that parameter between two updates: the update of the step before (its gradient and "
    "optimizer state), a checkpoint that was loaded, code that changes weights in place, memory errors of that device",
    FORWARD: "the module's arithmetic at that step: division, square root, logarithm or exponential without a "
    "guard, half precision, masks of -inf for a whole row; the size of its inputs in the steps before",
    BACKWARD: "the backward of that module: a hand-written gradient, a square root or norm at 0, a loss scale that "
    "is too large",
    EXCHANGE: "which rank sent it (collect with cc_pre_hook to see what each sends), then that rank's own modules",
    REDUCED: "the steps between a rank's own gradient and the update: reduction, unscaling and clipping (a "
    "total norm that is not finite); collect unreduced gradients to see whose it was",
    STATE: "the optimizer's state of that parameter: a checkpoint that was loaded, precision, memory errors",
    UPDATED: "the update itself: learning rate, epsilon and the optimizer state of that parameter",
}
"""Places to look at next, by kind, else by the phase of the first finding."""


def kind_of(incident: Incident, first: Located, ranks: Sequence[int]) -> Kind:
    """Kind of an incident.

    Args:
        ranks: ranks on which it began.
    """
    if not incident.of(Cause.initiating):
        return Kind.ending
    if _is_of_batch(incident, first, ranks):
        return Kind.bad_batch
    kind = kind_of_finding(first)
    return Kind.overflow if kind is Kind.nan and _has_infinity(incident, first) else kind


def kind_of_finding(located: Located) -> Kind:
    """Kind of one finding, whatever else its incident has."""
    finding = located.finding
    kind = about(finding.rule).kind
    if kind and (Kind[kind] is Kind.replica or not located.is_non_finite):
        return Kind[kind]
    if located.is_non_finite:
        return Kind.overflow if finding.op == "infs" or isinf(finding.value) else Kind.nan
    return _leap(located)


def _leap(first: Located) -> Kind:
    """Kind of a finite value that is too large or too small."""
    finding = first.finding
    if not isnan(finding.expected) and abs(finding.value) < abs(finding.expected):
        return Kind.collapse
    if abs(finding.value) >= HUGE:
        return Kind.overflow
    return Kind.explosion if first.phase in (BACKWARD, REDUCED) else Kind.spike


def _is_of_batch(incident: Incident, first: Located, ranks: Sequence[int]) -> bool:
    """Return whether the first bad tensor, on one rank alone, is an input of the model, or a finite output of its first
    layer that was bad in this step only."""
    if first.phase != FORWARD or not about(first.finding.rule).judges_size or len(ranks) > 1 or first.chunk != (0, 0):
        return False
    forward = (located for located, _ in incident.findings if located.phase == FORWARD)
    is_over = all(located.began == first.began for located in forward) and not incident.is_non_finite
    return first.head and (first.finding.key.part.startswith("input") or is_over)


def _has_infinity(incident: Incident, first: Located) -> bool:
    """Return whether the row has Inf, perhaps together with NaN: then Inf came first."""
    same = (located.finding for located, _ in incident.findings if located.place == first.place)
    return any(finding.op == "infs" or isinf(finding.value) for finding in same)


def origins(incident: Incident) -> list[Located]:
    """Findings that began an incident: the first of each rank and place that no earlier finding explains."""
    by_place: dict[tuple[object, ...], Located] = {}
    for located in incident.of(Cause.initiating):
        by_place.setdefault((located.rank, located.place), located)
    return list(by_place.values())


def rivals(begun: Sequence[Located]) -> list[Located]:
    """Other findings that may have begun the incident: of the same step as the first of ``begun``, at another place."""
    first, by_place = begun[0], dict[tuple[object, ...], Located]()
    for located in begun[1:]:
        if located.began == first.began and located.place != first.place:
            by_place.setdefault(located.place, located)
    return list(by_place.values())


def where(located: Located, ranks: Sequence[int] = ()) -> Message:
    """Text of module, row, rank, step and micro step."""
    finding = located.finding
    module = module_of(finding)
    return message(
        "{row} ({kind}: {meaning}) in {module}, {ranks}{stage}, step {step}{micro}{chunk}",
        row=cell_name(finding.key),
        kind=message(KINDS_OF_TENSOR[located.phase]),
        meaning=meaning(finding.signal),
        module=message("module {name}", name=module) if module else message("the root module"),
        ranks=on_ranks(ranks or [located.rank]),
        stage=message(" (pipeline stage {stage})", stage=located.pp_stage) if located.pp_stage else "",
        step=located.began,
        micro=message(", micro step {number}", number=finding.key.micro_step) if finding.micro_stepped else "",
        chunk=message(", virtual stage {stage}", stage=finding.key.stage) if finding.key.stage else "",
    )


def meaning(signal: str) -> Message:
    """Meaning of a signal."""
    return message(signal_of(signal).meaning) if signal in SIGNALS else message("optimizer state {name}", name=signal)


def on_ranks(ranks: Sequence[int]) -> Message:
    """``rank 3``, ``ranks 0-3`` or ``ranks 0,1,5``; of more than ``NAMED`` ranks the first spans and the numbers of the
    others and of all: ``ranks 0-7,16-23 and 1,008 more (1,024 in all)``."""
    ordered = sorted(set(ranks))
    text = ranks_text(ordered)
    if len(ordered) > NAMED and "," in text:
        text = _spans(ordered)
    return message("ranks {ranks}", ranks=text) if len(ordered) > 1 else message("rank {ranks}", ranks=text)


def _spans(ranks: Sequence[int]) -> Message:
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    named = ",".join(f"{first}-{last}" if last > first else str(first) for first, last in spans[:NAMED])
    more = sum(last - first + 1 for first, last in spans[NAMED:])
    return message(
        "{named}{more} ({number:,} in all)",
        named=named,
        more=message(" and {number:,} more", number=more) if more else "",
        number=len(ranks),
    )


def value(finding: Finding) -> Message:
    """Text of the value of a finding and of the value it was compared with."""
    if isnan(finding.expected):
        return message("{op} {value:.6g}", op=finding.op, value=finding.value)
    return message(
        "{op} {value:.6g} (compared with {expected:.6g})",
        op=finding.op,
        value=finding.value,
        expected=finding.expected,
    )


def paragraph(
    kind: Kind, incident: Incident, begun: Sequence[Located], shown: Evidence, facts: Sequence[str]
) -> Message:
    """Text of the diagnosis.

    Args:
        begun: findings that began it, as :func:`origins` returns them.
        facts: further sentences, such as one about the last clean step.
    """
    first = begun[0]
    ranks = [located.rank for located in begun if located.place == first.place]
    sentences = [
        message("First cause: {kind}.", kind=message(kind.value)),
        beginning(first, ranks),
        *_ambiguity(begun, ranks),
        *([message("The unfinished last step explains every finding.")] if kind is Kind.ending else []),
        *_shown(shown),
        *facts,
        *_what_followed(incident, first),
        message("Look next at {place}.", place=message(NEXT.get(kind) or NEXT[first.phase])),
    ]
    return joined(" ", sentences)


def spoilt_text(kind: Kind, incident: Incident, step: int) -> Message:
    """Text of the diagnosis of rows that were collected after an update of ``step`` had spoilt the weights."""
    return joined(
        " ",
        [
            message("First cause: {kind}.", kind=message(kind.value)),
            message(
                "It did not begin in these rows, of step {first} and later: the update of step {step} had applied "
                "gradients that are not finite, so that the weights were already spoilt and numbers are not finite in "
                "innocent modules, too.",
                first=incident.first,
                step=step,
            ),
            message(
                "Look next at {place}.",
                place=message("the findings of the checks at every step, which say where it began as far as was seen"),
            ),
        ],
    )


def beginning(first: Located, ranks: Sequence[int]) -> Message:
    """Sentence about the place, the value and the rule of the first finding."""
    finding = first.finding
    waited = finding.step > first.began
    return message(
        "It began in {place}: {value}, found by {rule}{waited}.",
        place=where(first, ranks),
        value=value(finding),
        rule=finding.rule,
        waited=message(" at step {step}, after several samples in a row", step=finding.step) if waited else "",
    )


def _ambiguity(begun: Sequence[Located], ranks: Sequence[int]) -> Iterator[str]:
    if len(set(ranks)) > 1:
        yield (
            message(
                "It appeared on {ranks} in the same step, at the same place, so no rank received it from "
                "another: the cause is something that they share, or lies in a step between that was not sampled.",
                ranks=on_ranks(ranks),
            )
            if begun[0].finding.rule != REPLICAS
            else message("It is ambiguous which of {ranks} is wrong: there is no majority.", ranks=on_ranks(ranks))
        )
    others = rivals(begun)
    if others:
        texts = (
            message("{place}: {value}", place=where(located), value=value(located.finding)) for located in others[:3]
        )
        yield message(
            "This is ambiguous: no recorded data lead from it to, or come before, {named}{more}.",
            named=joined("; ", texts),
            more=message("; and {number} more", number=len(others) - 3) if len(others) > 3 else "",
        )


def _shown(shown: Evidence) -> Iterator[str]:
    if shown.values:
        numbers = (message("{value:.6g} at step {step}", value=number, step=step) for step, number in shown.values)
        yield message(
            "Evidence: {op} in {file}: {numbers}{inputs}.",
            op=shown.op,
            file=shown.file,
            numbers=joined(", ", numbers),
            inputs=joined("; ", ["", shown.inputs]) if shown.inputs else "",
        )
    elif shown.file == "":
        yield message("Its row is not in the files.")


def _what_followed(incident: Incident, first: Located) -> Iterator[str]:
    later = incident.of(Cause.cascade)
    if not later:
        yield message("Nothing followed from it.")
        return
    bad = next((located for located in later if located.is_non_finite), None)
    if bad is not None and not first.is_non_finite:
        yield message("It became NaN or Inf in {place}.", place=where(bad))
    others = sorted(set(incident.by_rank) - {first.rank})
    yield message(
        "It was followed by {number} findings up to step {step}{reached}: first {place}."
        if incident.number > 2
        else "It was followed by {number} finding up to step {step}{reached}: first {place}.",
        number=incident.number - 1,
        step=incident.last,
        reached=message(" and reached {ranks}", ranks=on_ranks(others)) if others else "",
        place=where(later[0]),
    )
