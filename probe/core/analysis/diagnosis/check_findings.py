"""Findings of the checks of the training loop, as the run has written them: facts of its steps cannot be judged again
from rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any, NamedTuple

from probe.core.analysis.diagnosis.evaluate import EvaluatedRank
from probe.core.checks.check import CheckFinding
from probe.core.checks.gradient_not_finite import GradientNotFinite
from probe.core.hindsight.onset import LATE, rarer
from probe.core.language import joined, message
from probe.core.storage.batches import Readable
from probe.core.storage.check_lines import CHECKS, of_directory, read_check_lines
from probe.core.storage.directories import RecordedRun
from probe.core.verdict import on_ranks

MOST_SOUGHT = 3
"""Steps of a run from which is looked back because of what the checks have found."""
MOST = 200
"""Findings of a run at most, the first ones."""


class RankCheckFinding(NamedTuple):
    """Finding of a check on some ranks."""

    ranks: tuple[int, ...]
    finding: CheckFinding

    @property
    def text(self) -> str:
        """Line for people."""
        finding = self.finding
        onset = [finding.onset.text()] if finding.onset is not None and finding.onset.looked else []
        head = message(
            "{grade}: {kind}, {ranks}, step {step}: {text}",
            grade=message(finding.grade),
            kind=message(finding.check),
            ranks=on_ranks(self.ranks),
            step=finding.since,
            text=finding.text,
        )
        return joined("; ", [head, *onset])

    @property
    def is_critical(self) -> bool:
        """True if training is harmed for certain."""
        return self.finding.grade == "critical"

    @property
    def is_grave(self) -> bool:
        """True unless it is a note."""
        return self.finding.grade != "note"


def check_findings(rows: Readable, run: RecordedRun) -> list[RankCheckFinding]:
    """Return what the checks of each rank and the comparison of ranks have found, in order of the steps in which it
    began, at most ``MOST``."""
    return sorted([*_of_ranks(rows, run), *_between_ranks(rows, run)], key=_in_order)[:MOST]


def _in_order(case: RankCheckFinding) -> tuple[int, int, tuple[int, ...]]:
    return case.finding.since, case.finding.step, case.ranks


def _of_ranks(rows: Readable, run: RecordedRun) -> Iterator[RankCheckFinding]:
    for directory in run.directories:
        for finding in of_directory(rows, directory):
            yield RankCheckFinding(finding.ranks or (directory.rank,), finding)


def _between_ranks(rows: Readable, run: RecordedRun) -> Iterator[RankCheckFinding]:
    """Yield the findings in the folder of all ranks that belong to the program of this run."""
    programs = {directory.manifest.program for directory in run.directories} - {""}
    for folder in dict.fromkeys(directory.path.parent for directory in run.directories):
        for finding, program in read_check_lines(folder / CHECKS, rows.problems) if programs else ():
            if program in programs:
                yield RankCheckFinding(finding.ranks or run.ranks, finding)


def spoilt_steps(findings: Sequence[RankCheckFinding]) -> list[int]:
    """Return the steps whose updates have applied gradients that are not finite, in order: from then on numbers are not
    finite in innocent modules, too."""
    name = GradientNotFinite.name
    return sorted({case.finding.step for case in findings if case.finding.check == name and case.is_critical})


def sought_steps(findings: Sequence[RankCheckFinding]) -> list[int]:
    """Return the first steps in which something was found whose cause may have begun earlier."""
    steps = {case.finding.since for case in findings if case.is_grave and case.finding.check in LATE}
    return sorted(steps)[:MOST_SOUGHT]


def with_onsets(findings: Sequence[RankCheckFinding], judged: Sequence[EvaluatedRank]) -> list[RankCheckFinding]:
    """Return findings with what the rows before them show, else with what the run itself has seen before them."""
    return [case._replace(finding=_with_onset(case, judged)) for case in findings]


def _with_onset(case: RankCheckFinding, judged: Sequence[EvaluatedRank]) -> CheckFinding:
    finding = case.finding
    if finding.check not in LATE:
        return finding
    answers = [rank.onsets.get(finding.since) for rank in judged if rank.rank in case.ranks]
    answer = reduce(rarer, (possible for possible in answers if possible is not None and possible.looked), None)
    return finding if answer is None else finding._replace(onset=rarer(answer, finding.onset))


def check_entries(findings: Sequence[RankCheckFinding]) -> list[dict[str, Any]]:
    """Return findings for JSON, with grade, kind, place, rank and the step in which it began."""
    return [
        {
            "grade": finding.grade,
            "kind": finding.check,
            "where": ", ".join(finding.where),
            "rank": ranks[0] if len(ranks) == 1 else list(ranks),
            "step": finding.since,
            "found": finding.step,
            "text": finding.text,
            **({} if finding.onset is None else {"onset": finding.onset.as_json()}),
        }
        for ranks, finding in findings
    ]


def check_texts(findings: Sequence[RankCheckFinding]) -> list[str]:
    """Return lines for people; none if nothing was found."""
    if not findings:
        return []
    return [message("Checks of the loop at every step:"), *(joined("", ["  ", finding.text]) for finding in findings)]
