"""Judgement of one run of the benchmark of finding power: what counts as found, in the right place and step."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent / "faults"))

from case import Case

Entry = Mapping[str, Any]
"""Finding of ``probe anomalies --json``, with ``grade``, ``kind``, ``where``, ``rank`` and ``step``."""
GRADES = "critical", "warning"
"""Grades that count. Notes are neither a finding nor a false alarm."""
ABOUT_TIME = "RunSlow", "RunStraggler"
"""Kinds about the speed of steps, which depends on the machine's other work: they count neither way."""
LATEST = 10
"""Most steps between the first step in which a fault acts and the step that a finding names."""
EXACT = 2
"""Most steps by which a right step is missed: a step may be counted from its forward or from its update."""


class Judgement(NamedTuple):
    """Judgement of the findings of a faulty run and of its healthy twin."""

    found: bool
    place: bool
    """True if the first right finding names a right place and a right rank."""
    step: bool
    """True if it names the step in which the fault began to act."""
    false_alarms: int
    """Findings in the healthy twin."""


def counted(findings: Iterable[Entry]) -> list[Entry]:
    """Return the findings that count."""
    return [entry for entry in findings if entry["grade"] in GRADES and entry["kind"] not in ABOUT_TIME]


def right(case: Case, findings: Iterable[Entry]) -> list[Entry]:
    """Return the findings of a right kind that are neither too early nor too late, in their order."""
    span = range(case.start, case.start + LATEST + 1)
    return [entry for entry in counted(findings) if entry["kind"] in case.kinds and entry["step"] in span]


def is_in_place(case: Case, entry: Entry) -> bool:
    """Return whether a finding names a place and a rank of the fault."""
    ranks = entry["rank"] if isinstance(entry["rank"], Sequence) else [entry["rank"]]
    if case.ranks and not {*case.ranks} & {*ranks}:
        return False
    return not case.where or any(fnmatchcase(entry["where"] or "", pattern) for pattern in case.where)


def judge(case: Case, faulty: Sequence[Entry], healthy: Sequence[Entry]) -> Judgement:
    """Judge a pair of runs with the same seed: the first right finding decides place and step."""
    alarms, entries = len(counted(healthy)), right(case, faulty)
    if alarms or not entries:
        return Judgement(False, False, False, alarms)
    first = entries[0]
    return Judgement(True, is_in_place(case, first), first["step"] - case.start <= EXACT, 0)


def most(votes: Sequence[bool]) -> bool:
    """Return whether at least two of three agree."""
    return 3 * sum(votes) >= 2 * len(votes) > 0
