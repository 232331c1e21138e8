"""What a report is told about the cause: findings, and a paragraph in words.

Whoever analyses a run gives :func:`probe.core.report.writing.write_report` a :class:`Diagnosis`. Without one, the
report makes do (:func:`preliminary`) with what the live rules have left in ``anomaly.json`` (:func:`dumped`) and with
the first numbers that are not finite.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from math import isinf, isnan, nan
from pathlib import Path
from typing import Any, NamedTuple

from probe.core.anomaly import WORDS
from probe.core.naming import SIGNALS, signal_of
from probe.core.reading.problems import Problems

MOST = 2000
"""Findings that are listed; more are counted."""
LARGEST = 256 << 20
"""Bytes of an ``anomaly.json`` that is read."""

_RULE = re.compile(r"Rule (\w+) reports")
_VALUE = re.compile(r"current value (\S+?),")
_TAG = re.compile(
    r"(?P<stage>\d+):(?P<name>.*?)(?::(?P<micro>\d+)(?P<call>\.call\d+)?)?/rank\d+/(?P<task>.+)", re.DOTALL
)
_OP = re.compile(r"_call_-?\d+_(\w+?)(?:_\d+)?")
_SIGNAL_OF_TASK = {signal.task: name for name, signal in SIGNALS.items()}


class Mark(NamedTuple):
    """One finding as the report shows it."""

    rule: str
    signal: str
    name: str
    """As in the column ``name`` of the files."""
    op: str
    value: float
    step: int
    rank: int
    micro_step: int | None = None
    """None where it tells nothing apart."""
    cause: str = ""
    """``initiating``, ``cascade``, ``teardown``; empty if nobody has judged."""
    message: str = ""
    vpp_stage: int = 0
    order: int = 0
    """Position in the order of the step's execution."""


@dataclass(frozen=True)
class Diagnosis:
    """What the first card of a report says."""

    paragraph: str
    """What happened first, where, and what followed; text."""
    findings: Sequence[Mark]
    """In the order of cause; the first one is shown with its evidence."""
    number: int = 0
    """How many there are, if more than ``findings`` lists."""
    note: str = ""
    """How it was found; what it cannot know."""

    @property
    def total(self) -> int:
        return max(self.number, len(self.findings))


def preliminary(dumped: Sequence[Mark], number: int, first_bad: Sequence[Mark]) -> Diagnosis:
    """The best that can be said without an analysis of the whole run."""
    # That a rule has seen the same number too makes it no second finding.
    seen = {(mark.signal, mark.name, mark.op, mark.step, mark.rank) for mark in dumped}
    new = [mark for mark in first_bad if (mark.signal, mark.name, mark.op, mark.step, mark.rank) not in seen]
    marks = sorted([*dumped, *new], key=causal)
    if not marks:
        return Diagnosis("Nothing was found: every number is finite, and no rule has reported anything.", ())
    paragraph = f"The first thing that went wrong: {sentence(marks[0])}"
    note = "In order of steps and of what a step does. Which of them caused which was not judged."
    return Diagnosis(paragraph, marks[:MOST], number + len(new), note)


def sentence(mark: Mark) -> str:
    """``NaN at step 3 on rank 1: norm of fc.weight (weight gradient ...) is nan.``"""
    micro = "" if mark.micro_step is None else f", micro step {mark.micro_step},"
    meaning = signal_of(mark.signal).meaning
    return (
        f"{kind(mark)} at step {mark.step}{micro} on rank {mark.rank}: {mark.op} of {mark.name} ({meaning}) "
        f"is {mark.value:.6g}."
    )


def kind(mark: Mark) -> str:
    """In a word or two, what is wrong with the number: ``NaN``, ``Inf``, ``Spike``, ..."""
    if isnan(mark.value):
        return "NaN"
    if isinf(mark.value):
        return "Inf"
    return WORDS.get(mark.rule) or mark.rule.removeprefix("Anomaly") or "Finding"


def causal(mark: Mark) -> tuple[int, int, int, int, int]:
    """Sorts as :func:`probe.core.anomaly.causal_order` does, then by rank."""
    phase = signal_of(mark.signal).phase
    if mark.micro_step is not None:
        return mark.step, 1, mark.micro_step, phase, mark.order
    return mark.step, 0 if phase == 0 else 2, 0, phase, mark.order


def dumped(root: Path, ranks: Iterable[int], first: int, last: int, problems: Problems) -> tuple[list[Mark], int]:
    """The earliest findings in ``root/anomaly_detected``, at most ``MOST``, and how many there are.

    Those files are shared by runs and do not say of which a finding is; steps from ``first`` to ``last`` count.
    """
    number = 0

    def marks() -> Iterator[Mark]:
        nonlocal number
        for rank in ranks:
            for mark in _of_file(root / "anomaly_detected" / f"rank{rank}" / "anomaly.json", problems):
                if first <= mark.step <= last:
                    number += 1
                    yield mark

    earliest = nsmallest(MOST, marks(), key=causal)
    return earliest, number


def _of_file(path: Path, problems: Problems) -> Iterator[Mark]:
    if not path.exists():
        return
    try:
        if path.stat().st_size > LARGEST:
            raise ValueError(f"larger than {LARGEST >> 20} MiB")
        entries = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(entries, dict):
            raise ValueError(f"there is {type(entries).__name__}")
    except (OSError, ValueError, RecursionError) as error:
        problems.add(path, f"expected a JSON object of findings; {error}: left out", getattr(error, "lineno", None))
        return
    for key, entry in entries.items():
        try:
            yield _mark(key, entry)
        except (TypeError, KeyError, ValueError) as error:
            problems.add(path, f"expected a finding under {key!r}; {type(error).__name__} {error}: left out")


def _mark(key: str, entry: Mapping[str, Any]) -> Mark:
    tag, message = str(entry["tag_name"]), str(entry.get("message", ""))
    about = _TAG.fullmatch(tag)
    if about is None:
        raise ValueError(f"tag_name {tag!r}")
    rule, value, op = _RULE.search(message), _VALUE.search(message), re.search(_OP.pattern + "$", key)
    return Mark(
        rule=rule[1] if rule else "",
        signal=_SIGNAL_OF_TASK.get(about["task"], about["task"]),
        name=about["name"] + (about["call"] or ""),
        op=op[1] if op else "",
        value=_number(value[1] if value else ""),
        step=int(entry["step"]),
        rank=int(entry["rank"]),
        micro_step=None if about["micro"] is None else int(about["micro"]),
        message=message,
        vpp_stage=int(entry.get("vpp_stage", 0)),
        order=int(entry.get("call_id", 0)),
    )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return nan
