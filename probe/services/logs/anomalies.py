"""Anomalies of a line: by its numbers, and by the phrases of :mod:`probe.services.logs.signs`.

Words count as words: ``BLOOM`` is no OOM, ``exchange`` does not hang, ``nanoseconds`` are no NaN. Words around a phrase
may deny it: ``to avoid deadlocks``.
"""

from __future__ import annotations

from math import isfinite
from typing import Any

from probe.services.logs.expressions import Expression
from probe.services.logs.metrics import Metrics
from probe.services.logs.signs import FACTS, SIGNS, Sign
from probe.services.logs.texts import ECC_XIDS, XIDS, explanation, meaning_of_xid

NEGATED = Expression(
    rb"\b(?:no|not|without|never|non|avoid(?:s|ing|ed)?|prevent(?:s|ing|ed)?|to (?:detect|catch|check)|check(?:s|ing)?|"
    rb"protect(?:s|ed|ing)? (?:from|against)|in case of|if)\b[^.;|!]{0,40}$"
)
"""Words before a phrase that deny it: ``to avoid deadlocks``, ``no NaN in the loss``."""
AFTER = Expression(
    rb"^.{0,2}[ _-]?(?:detection|detector|check(?:s|ing|er)?|protection|prevention|handling|threshold|iterations?|"
    rb"count|guard|filter|: ?(?:0|false|no|none|off)|= ?(?:0|false|no|none|off))\b"
)
"""Words after a phrase that make it a setting or a count."""
MILDER = Expression(rb"\b(?:single[ -]bit|corrected error|\d{1,9} ce)\b|(?:exitcode {0,4}: |signal )-?15 ")
MILD = frozenset({"ecc_error", "process_failed"})
"""Errors of memory that were corrected, and processes that the launcher ended after another had failed."""
MOST_MATCHES = 16
"""Largest number of phrases of one kind in a line that are looked at."""
NAN, NOTHING = frozenset({"nan"}), frozenset[str]()
COMPONENTS = {sign.kind: sign.component for sign in SIGNS}
_FLAT = tuple((needle, index) for index, sign in enumerate(SIGNS) for needle in sign.needles)


def signs_in(low: bytes, known: frozenset[str] = frozenset()) -> list[tuple[Sign, Any]]:
    """Return the signs that a line has, one a group, each with its match.

    Args:
        low: The line in lower case.
        known: Groups that are not looked for.
    """
    found: list[tuple[Sign, Any]] = []
    groups = set(known)
    for index in sorted({index for needle, index in _FLAT if needle in low}):
        sign = SIGNS[index]
        if sign.group in groups:
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
    match, tried = sign.phrases.search(low), 1
    while match is not None and sign.kind not in FACTS and _denied(low, match.start(), match.end()):
        match = sign.phrases.search(low, match.end()) if tried < MOST_MATCHES else None
        tried += 1
    return match


def _denied(low: bytes, start: int, end: int) -> bool:
    return (
        NEGATED.search(low[max(0, start - 64) : start]) is not None or AFTER.match(low[end - 1 : end + 48]) is not None
    )


def anomalies_of(low: bytes, metrics: Metrics, searched: bool, language: str) -> list[dict[str, Any]]:
    """Return the anomalies of a line: its phrases', and those of its numbers.

    Args:
        low: The line in lower case.
        metrics: Its numbers.
        searched: False if the line is known to have no needle.
        language: Language of the texts.
    """
    anomalies = {kind: _anomaly(kind, severity, language) for kind, severity in _of_numbers(metrics)}
    counted = b"number of nan iterations" in low
    of_scale = not isfinite(metrics.get("loss_scale", 0.0))  # it is no loss, though the word stands beside the number
    for sign, match in signs_in(low, NAN if counted or of_scale or anomalies else NOTHING) if searched else ():
        if sign.kind == "gpu_xid":
            anomaly = _xid(match, language)
        else:
            severity = "medium" if MILDER.search(low) and sign.kind in MILD else sign.severity
            anomaly = _anomaly(sign.kind, severity, language)
        anomalies.setdefault(anomaly["type"], anomaly)
    return list(anomalies.values())


def component_of(anomalies: list[dict[str, Any]]) -> str:
    """Return the part of the system that the first anomaly is about; empty without one."""
    return next((COMPONENTS[each["type"]] for each in anomalies), "")


def _of_numbers(metrics: Metrics) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    if all(map(isfinite, metrics.values())) and "nan_steps" not in metrics:
        return found
    if any(not isfinite(value) for name, value in metrics.items() if "loss" in name and "scale" not in name):
        found.append(("nan_loss", "critical"))
    elif metrics.get("nan_steps", 0) > 0:
        found.append(("nan_loss", "high"))
    if not isfinite(metrics.get("gradient_norm", 0.0)):
        found.append(("nan_gradient", "medium"))
    return found


def _anomaly(kind: str, severity: str, language: str) -> dict[str, Any]:
    texts = explanation(kind, language)
    return {"type": kind, "severity": severity, **texts._asdict()}


def _xid(match: Any, language: str) -> dict[str, Any]:
    number = int(match.group(2))
    severity = XIDS[number][0] if number in XIDS else "high"
    anomaly = _anomaly("ecc_error" if number in ECC_XIDS else "gpu_xid", severity, language)
    anomaly |= {"xid": number, "pci": match.group(1).decode("ascii")}
    if meaning := meaning_of_xid(number, language):
        anomaly["description"] += f": {meaning}"
    return anomaly
