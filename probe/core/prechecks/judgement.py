"""Judgement of the trials of a program: findings of each rank and between ranks, and the line about what was seen."""

from __future__ import annotations

from collections.abc import Sequence

from probe.core.checks.check import CheckFinding, NotApplicable
from probe.core.door import attempt
from probe.core.faults import Faults
from probe.core.language import Message, joined, message
from probe.core.prechecks import PRECHECKS
from probe.core.prechecks.precheck import Precheck, RankPrecheck
from probe.core.prechecks.trial import Trial

FAILED = message("it failed")


def judged(trial: Trial, faults: Faults) -> list[CheckFinding]:
    """Return the findings of one rank. Never raises."""
    findings: list[CheckFinding] = []
    for name, kind in PRECHECKS.items():
        new_findings = attempt(faults, f"precheck {name}", _findings, kind(), trial)
        if new_findings is None:
            trial.unseen[name] = FAILED
        findings += new_findings or []
    return findings


def compared(trials: Sequence[Trial]) -> list[CheckFinding]:
    """Return the findings between ranks."""
    ranks = sorted(trials, key=lambda trial: trial.rank)
    checks = [kind() for kind in PRECHECKS.values()]
    return [finding for check in checks if isinstance(check, RankPrecheck) for finding in check.compare(ranks)]


def _findings(check: Precheck, trial: Trial) -> list[CheckFinding]:
    return [*check.judge(trial)]


def preflight(trials: Sequence[Trial], findings: Sequence[CheckFinding]) -> Message:
    """Return one line about all prechecks: how many hold, and what was not looked at, with the reasons."""
    if trials and all(trial.unrecorded for trial in trials):
        return message("before training: {parts}", parts=message(trials[0].unrecorded))
    broken = {finding.check for finding in findings if finding.grade != "note"}
    holding, absent, unseen = 0, 0, dict[str, list[str]]()
    for name, kind in PRECHECKS.items():
        reason = _missing(name, kind, trials)
        if name in broken:
            continue
        if reason is None:
            holding += 1
        elif isinstance(reason, NotApplicable):
            absent += 1
        else:
            unseen.setdefault(reason, []).append(name)
    broken &= set(PRECHECKS)
    names = ", ".join(sorted(broken))
    parts = [
        message("{number} hold", number=holding),
        *([message("{number} broken ({names})", number=len(broken), names=names)] if broken else []),
        *([message("{number} not applicable", number=absent)] if absent else []),
    ]
    if unseen:
        named = message("{reason}: {names}")
        reasons = [message(named, reason=_clause(reason), names=", ".join(of)) for reason, of in unseen.items()]
        number = sum(map(len, unseen.values()))
        unseen_text = "{number} could not be seen ({reasons})"
        parts.append(message(unseen_text, number=number, reasons=joined("; ", reasons)))
    return message("before training: {parts}", parts=joined(", ", parts))


def _clause(reason: str) -> Message:
    return reason if isinstance(reason, Message) else message(reason)


def _missing(name: str, kind: type[Precheck], trials: Sequence[Trial]) -> str | None:
    """Return why a precheck says nothing, of the rank of which least was seen."""
    if not trials:
        return message("nothing was tried")
    failed = [trial.unseen[name] for trial in trials if trial.unseen.get(name) == FAILED]
    reasons = [*failed, *(reason for trial in trials if (reason := kind().missing(trial)) is not None)]
    unseen = [reason for reason in reasons if not isinstance(reason, NotApplicable)]
    return next(iter(unseen or reasons), None)
