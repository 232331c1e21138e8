"""Anomalies of a line: by its numbers, and by the phrases of :mod:`probe.services.logs.signs`.

Words count as words: ``BLOOM`` is no OOM, ``exchange`` does not hang, ``nanoseconds`` are no NaN. Words around a phrase
may deny it: ``to avoid deadlocks``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isfinite, nan
from typing import Any

from probe.services.logs.expressions import Expression
from probe.services.logs.metrics import TOTALS, Metrics
from probe.services.logs.names import COUNTERS, OTHERWISE
from probe.services.logs.signs import BEGINS, CODES, FACTS, LAST, OF_ERROR, SIGNS, Sign
from probe.services.logs.tables import Columns, columns_of, row_of
from probe.services.logs.texts import ECC_XIDS, XIDS, explanation, meaning_of_xid

NEGATED = Expression(
    rb"\b(?:no|not|without|never|non|avoid(?:s|ing|ed)?|prevent(?:s|ing|ed)?|to (?:detect|catch|check)|check(?:s|ing)?|"
    rb"protect(?:s|ed|ing)? (?:from|against)|in case of|if|when|whether|once|until|unless)\b[^.;|!]{0,40}$|\bfrom ?$|"
    rb"\b(?:best|max_grad_norm|threshold|limit|clip\w{0,4}|improved|decreased)\b[^.;|!]{0,16}$"
)
"""Words before a phrase that deny it: ``to avoid deadlocks``, ``no NaN in the loss``, ``best loss: inf``."""
ADVICE = Expression(
    rb"\b(?:(?:can|could|may|might|would|will|should)(?: (?:also|sometimes|either|only|still|then|even|easily))? (?:be|"
    rb"have|lead|result|cause|indicate|mean|trigger|happen|occur|come|run|get|hang|see|help|try|set|increase|consider)|"
    rb"(?:maybe|perhaps|possibl[ey]|probabl[ey]|potential(?:ly)?|typically|usually|often|sometimes|likely|please|consider|"
    rb"make sure|ensure|for example|e\.g\.|such as|see also|refer to|how to|if you|in case|when you|"
    rb"prone|suggest(?:s|ed)?|recommend\w{0,5}))\b"
    rb"[^;!|]{0,160}$|\b(?:can|could|may|might|would|should|will)(?: [a-z]{1,12})?\W{0,2}$"
)
"""Words before a phrase in its sentence by which it is advice or a guess: ``can be caused by a deadlock``."""
OPTIONAL = Expression(rb"failed to (?:open|find|load) \S{0,32}(?:lib|plugin|symbol)")
"""Words of a message about a library that a program does without."""
GUESS = Expression(rb"^[^.;|!]{0,3}[ -](?:(?:can|could|may|might|would) |prone\b)")
"""Words after a phrase that make it a guess: ``a deadlock may occur``."""
SENTENCE = Expression(rb"[.!?] {0,2}[a-z][a-z']{0,16} |\| | - |; |\): ")
"""Begin of a sentence; some messages leave out the space before it."""
FRAME = Expression(
    rb"^(?:[^\s]{0,24}:?\s{1,8})?(?:file \"[^\"]{1,400}\", line \d{1,9}|\s{0,64}raise [a-z_][\w.]{0,80}\(|"
    rb"\s{0,64}(?:possible causes?|solutions?|hint|suggestion): |\s{0,64}assert |#\d{1,4}:? \w{1,80} from /|"
    rb"frame #\d{1,4}: )"
)
"""Line of a stack: where it is, the line of source that raises, a frame of C++; the error itself stands at the end. And
that of advice below an error."""
HOST = Expression(rb"^(?:<\d{1,3}>)?[a-z]{3} [ \d]\d \d\d:\d\d:\d\d \S{1,64} ")
"""Time and host before a message of syslog; a host is often called a GPU or a node."""
COMMENTS = (b"# ", b"//")
"""Begin of a comment, in a source or a configuration that is printed."""
AFTER = Expression(
    rb"^[^.]{0,2}[ _-]?(?:to (?:fit|schedule)|"
    rb"detection|detector|check(?:s|ing|er)?|protection|prevention|handling|threshold|iterations?|"
    rb"count|guard|filter|(?:events?|errors?|kills?)[:= ]{1,3}0|0(?:[.]0{1,6})?|[:=] ?(?:0|false|no|none|off))\b"
)
"""Words after a phrase that make it a setting or a count."""
OFF = Expression(rb"^.?[\"']? ?[:=] ?(?:0|false|no|none|null|off)\b")
"""Words after a phrase that make it a state that does not hold: ``"OOMKilled": false``."""
MILDER = Expression(rb"\b(?:single[ -]bit|corrected error|\d{1,9} ce)\b|(?:exitcode {0,4}: |signal )-?15 ")
EXPLAINED = {"device_error": "oom", "disk_error": "communication"}
"""Groups of signs that explain an error of another kind in the same line."""
CODED = Expression(rb"\b(e[a-z]\d{4}|e\d{5}|err\d{5})\b")
"""Code of CANN or of torch_npu."""
MILD = frozenset({"ecc_error", "process_failed"})
"""Errors of memory that were corrected, and processes that the launcher ended after another had failed."""
MOST_MATCHES = 16
"""Largest number of phrases of one kind in a line that are looked at."""
AROUND = 240
"""Bytes before a phrase in which its sentence is looked for."""
NAN = frozenset({"nan"})
STATED = {"loss": "nan_loss", "gradient_norm": "nan_gradient"}
"""Parts of names of numbers by which, if those are finite, the word NaN beside them is about another: ``'reward':
nan``."""
ADDRESS = Expression(rb"\b((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?)\b")
"""Address of a device on the PCI bus."""
CODED_KINDS = frozenset({"device_error", "communication_error", "communication_timeout", "oom_error"})
LOST_XIDS = frozenset({79, 119, 120})
"""Xid numbers after which the device does not answer any more."""
OF_WATCHDOG = Expression(rb"detected by watchdog|watchdog thread terminated")
"""Messages of a watchdog that follow the one about a timeout, or about an error."""
COUNTED = COUNTERS | {TOTALS[name] for name in COUNTERS}
LASTING = 10
"""Lines in a row with NaN gradients from which a loss scaler, which halves its scale each time, is no cause."""
COMPONENTS = {sign.kind: sign.component for sign in SIGNS} | {"training_lost": "training"}
_FLAT = tuple((needle, index) for index, sign in enumerate(SIGNS) for needle in sign.needles)
_CODED = tuple(index for index, sign in enumerate(SIGNS) if CODES.encode() in sign.needles)


def signs_in(low: bytes, known: frozenset[str] = frozenset(), error: bool = False) -> list[tuple[Sign, Any]]:
    """Return the signs that a line has, one a group, each with its match.

    Args:
        low: The line in lower case.
        known: Groups and kinds that are not looked for.
        error: Whether the line is of the level ERROR.
    """
    found: list[tuple[Sign, Any]] = []
    groups = set(known)
    for index in sorted({index for needle, index in _FLAT if needle in low}.union(_CODED if CODED.search(low) else ())):
        sign = SIGNS[index]
        if sign.group in groups or sign.kind in groups:
            continue
        if sign.group in (LAST, OF_ERROR) and found:
            continue
        if sign.group == OF_ERROR and not error and BEGINS.search(low) is None:
            continue
        if EXPLAINED.get(sign.kind) in groups:
            continue
        match = _undenied(sign, low)
        if match is None or (sign.needs is not None and sign.needs.search(low) is None):
            continue
        found.append((sign, match))
        if sign.group:
            groups.add(sign.group)
    return found


def _undenied(sign: Sign, low: bytes) -> Any:
    """Return the first match of the phrases of ``sign`` that the words around it do not deny, or None."""
    match, tried, whole = sign.phrases.search(low), 1, sign.kind in FACTS and sign.group not in (LAST, OF_ERROR)
    while match is not None and _denied(low, match.start(match.lastindex or 0), match.end(), whole):
        match = sign.phrases.search(low, match.end()) if tried < MOST_MATCHES else None
        tried += 1
    return match


def _denied(low: bytes, start: int, end: int, whole: bool) -> bool:
    """Return whether the words around a phrase deny it.

    Args:
        low: The line in lower case.
        start: Begin of the phrase.
        end: End of the phrase.
        whole: True if the phrase is a whole message, which only words of advice deny.
    """
    before = low[max(0, start - AROUND) : start + 1]
    begins = [found.start() for found in SENTENCE.finditer(before)]
    sentence = before[begins[-1] :] if begins else before
    if (
        ADVICE.search(sentence[:-1]) is not None
        or OPTIONAL.search(low, start, end + AROUND) is not None
        or OFF.match(low[end - 1 : end + 16]) is not None
    ):
        return True
    if whole:
        return False
    return (
        NEGATED.search(low[max(0, start - 64) : start]) is not None
        or AFTER.match(low[end - 1 : end + 48]) is not None
        or GUESS.match(low[end - 1 : end + 48]) is not None
    )


def anomalies_of(
    low: bytes, metrics: Metrics, searched: bool, language: str, error: bool = False
) -> list[dict[str, Any]]:
    """Return the anomalies of a line: its phrases', and those of its numbers.

    Args:
        low: The line in lower case.
        metrics: Its numbers.
        searched: False if the line is known to have no needle.
        language: Language of the texts.
        error: Whether the line is of the level ERROR.
    """
    if low[9:10] == b":":
        low = HOST.replace(low, b"")
    if searched and (FRAME.match(low) is not None or low.lstrip()[:2] in COMMENTS):
        return []
    finite = all(map(isfinite, metrics.values()))
    anomalies = {kind: _anomaly(kind, severity, language) for kind, severity in _of_numbers(metrics, finite)}
    counted = b"number of nan iterations" in low
    named = not finite and any(
        not isfinite(value)
        for name, value in metrics.items()
        if name == "loss_scale" or name[:5] == "loss/" or not OTHERWISE.isdisjoint(name.split("_"))
    )
    # a scale and a share of the batch are no loss, though the word stands beside the number
    known = {} if b"invalid loss" in low else STATED
    stated = frozenset(kind for part, kind in known.items() if any(part in name for name in _finite(metrics)))
    for sign, match in signs_in(low, NAN if counted or named or anomalies else stated, error) if searched else ():
        if sign.kind == "gpu_xid":
            anomaly = _xid(match, language)
        else:
            severity = "medium" if MILDER.search(low) and sign.kind in MILD else sign.severity
            anomaly = _anomaly(sign.kind, severity, language) | _details(sign.kind, low)
        anomalies.setdefault(anomaly["type"], anomaly)
    return list(anomalies.values())


def _finite(metrics: Metrics) -> Iterator[str]:
    """Yield the names of the numbers that are finite, but for the scale of the loss."""
    return (name for name, value in metrics.items() if isfinite(value) and name != "loss_scale")


def _details(kind: str, low: bytes) -> dict[str, str]:
    """Return the address of a lost device, or the code of an error of CANN, where the line has one."""
    if kind == "device_lost" and (found := ADDRESS.search(low)):
        return {"pci": found.group(1).decode("ascii")}
    if kind in CODED_KINDS and (found := CODED.search(low)):
        return {"code": found.group(1).decode("ascii").upper()}
    return {}


def component_of(anomalies: list[dict[str, Any]]) -> str:
    """Return the part of the system that the first anomaly is about; empty without one."""
    return next((COMPONENTS[each["type"]] for each in anomalies), "")


@dataclass
class Judged:
    """Facts of the lines of a file so far that the judgement of the next depends on."""

    lost: int = 0
    """Lines in a row whose gradients were NaN or infinite."""
    waited: set[int | None] = field(default_factory=set)
    """Ranks of which a collective has not ended in time."""
    counters: dict[int | None, Metrics] = field(default_factory=dict)
    """Step, epoch and batch of the latest line of each rank that had any: the head of a block."""
    columns: Columns = field(default_factory=dict)
    """Names of the columns of the latest table."""


def judge(record: dict[str, Any], judged: Judged, within: bool, language: str) -> None:
    """Judge a record in the light of the lines before it.

    NaN gradients that stay are no loss scaler's; after a watchdog's timeout the rest of its block is about that.
    Numbers of a line ``within`` a block, which is set in or a table's row, get the step at the block's head; those of a
    row without names the names of the table's columns.
    """
    metrics, rank = record["metrics"], record["rank"]
    if not metrics and (columns := columns_of(record["raw_message"])):
        judged.columns = columns
    elif judged.columns and "loss" not in metrics and (row := row_of(record["raw_message"], judged.columns)):
        metrics |= row
        record["component"] = "training"
        record["anomalies"] += [
            _anomaly(*each, language) for each in _of_numbers(row, all(map(isfinite, row.values())))
        ]
    if not COUNTERS.isdisjoint(metrics):
        judged.counters[rank] = {name: value for name, value in metrics.items() if name in COUNTED}
    elif within and record["component"] == "training":
        metrics |= judged.counters.get(rank, {})
    norm = metrics.get("gradient_norm")
    if norm is not None:
        judged.lost = 0 if isfinite(norm) else judged.lost + 1
    for place, anomaly in enumerate(record["anomalies"]):
        if anomaly["type"] == "communication_timeout":
            judged.waited.add(rank)
        elif anomaly["type"] == "nan_gradient" and judged.lost >= LASTING:
            record["anomalies"][place] = _anomaly("training_lost", "high", language)
        elif rank in judged.waited and OF_WATCHDOG.search(record["raw_message"].lower().encode()):
            record["anomalies"][place] = _anomaly("communication_timeout", "critical", language)


def _of_numbers(metrics: Metrics, finite: bool) -> list[tuple[str, str]]:
    """Return kind and severity of the anomalies that the numbers of a line show; ``finite`` if all of them are."""
    if finite:
        return [("nan_loss", "high")] if metrics.get("nan_steps", 0) > 0 else []
    found: list[tuple[str, str]] = []
    lost = [name for name, value in metrics.items() if not isfinite(value) and _is_loss(name)]
    if isfinite(metrics.get("loss", nan)):  # a share of the batch without a sample has no mean, as ``loss/cn``
        lost = [name for name in lost if not name.startswith(("loss/", "loss_"))]
    if lost:
        found.append(("nan_loss", "critical"))
    elif metrics.get("nan_steps", 0) > 0:
        found.append(("nan_loss", "high"))
    if any(not isfinite(value) for name, value in metrics.items() if name.startswith("gradient_norm")):
        found.append(("training_lost", "high") if metrics.get("loss") == 0 else ("nan_gradient", "medium"))
    return found


def _is_loss(name: str) -> bool:
    """Return whether a metric is a loss of now: no scale, and no ``best_train_loss`` that is infinite at the start."""
    return "loss" in name and "scale" not in name and OTHERWISE.isdisjoint(name.split("_"))


def _anomaly(kind: str, severity: str, language: str) -> dict[str, Any]:
    texts = explanation(kind, language)
    return {"type": kind, "severity": severity, **texts._asdict()}


def _xid(match: Any, language: str) -> dict[str, Any]:
    number = int(match.group(2))
    severity = XIDS[number][0] if number in XIDS else "high"
    anomaly = _anomaly("ecc_error" if number in ECC_XIDS else "gpu_xid", severity, language)
    if number in LOST_XIDS:
        lost = explanation("device_lost", language)
        anomaly |= {"cause": lost.cause, "advice": lost.advice}
    anomaly |= {"xid": number, "pci": match.group(1).decode("ascii")}
    if meaning := meaning_of_xid(number, language):
        anomaly["description"] += f": {meaning}"
    return anomaly
