"""Files of the findings of the checks of the training loop: one JSON object a line, written and read here.

A rank writes one in its directory, and the parent process of ``probe run`` one in the folder of all, of what it has
found between ranks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from probe.core.checks.check import GRADES, CheckFinding
from probe.core.hindsight.onset import Onset
from probe.core.language import Message, message, packed, unpacked
from probe.core.storage.batches import Readable
from probe.core.storage.directories import RankDirectory
from probe.core.storage.files import append_line
from probe.core.storage.location import Place
from probe.core.storage.manifest import is_whole
from probe.core.storage.packed.run import TEXTS_TABLE
from probe.core.storage.problems import Problems
from probe.core.storage.run_directory import plain
from probe.core.storage.side_files import packed_records, parsed_lines, whole_lines

CHECKS = "checks.jsonl"
PROGRAM = "program"
"""Field with the identity of the program, of findings between ranks."""
MESSAGE = "message"
"""Field with the template and the values of the text."""
MOST = 10_000
"""Findings of a file that are read; a run writes a few hundred at most."""
ABOUT = message("the findings of the checks")


class CheckLine(NamedTuple):
    """Line of such a file."""

    finding: CheckFinding
    program: str = ""
    """Identity of the program; empty in the file of a rank."""


class CheckLines:
    """Writer of the findings of one rank.

    Args:
        directory: directory of the rank, or the folder of all.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / CHECKS

    def write(self, findings: Sequence[CheckFinding], program: str = "") -> None:
        """Append findings.

        Raises:
            OSError: if they cannot be written; then none is.
        """
        append_line(self.path, "".join(check_line(finding, program) for finding in findings))


def check_line(finding: CheckFinding, program: str = "") -> str:
    """Return the line of a finding."""
    fields = plain(finding) | ({PROGRAM: program} if program else {})
    if isinstance(finding.text, Message):
        fields[MESSAGE] = packed(finding.text)
    if finding.onset is None:
        del fields["onset"]
    return json.dumps(fields, ensure_ascii=False) + "\n"


def of_directory(rows: Readable, directory: RankDirectory) -> Iterator[CheckFinding]:
    """Yield the findings that a rank has written in a directory, those of steps that were done again left out.

    Args:
        rows: reader of the run's rows; of a packed run one that has a ``connection``.
    """
    path, problems = directory.path / CHECKS, rows.problems
    if directory.packed is None:
        lines = whole_lines(path, ABOUT, problems)
    else:
        texts = packed_records(rows, directory, TEXTS_TABLE, ABOUT, f"AND name = '{CHECKS}'")
        lines = (line for text in texts for line in bytes(text["content"]).splitlines())
    for line in _parsed(lines, path, problems):
        if directory.until is None or line.finding.step < directory.until:
            yield line.finding


def read_check_lines(path: Place, problems: Problems) -> Iterator[CheckLine]:
    """Yield the lines of a file, none if there is no file. An unfinished last line may be in the making."""
    return _parsed(whole_lines(path, ABOUT, problems), path, problems)


def _parsed(lines: Iterable[bytes], path: Place, problems: Problems) -> Iterator[CheckLine]:
    return parsed_lines(islice(lines, MOST), _line, path, ABOUT, problems)


def _line(fields: Mapping[str, Any]) -> CheckLine:
    """Parse a line.

    Raises:
        ValueError: if a field is not as it is written; so are KeyError and TypeError.
    """
    step, since, grade = fields["step"], fields["since"], fields["grade"]
    if grade not in GRADES or not is_whole(step) or not isinstance(since, int):
        raise ValueError("expected a grade and two steps")
    evidence = {str(name): float(value) for name, value in dict(fields["evidence"]).items()}
    where, ranks = tuple(map(str, fields["where"])), tuple(map(int, fields.get("ranks") or ()))
    onset, text = Onset.of(fields.get("onset")), unpacked(fields.get(MESSAGE, fields["text"]))
    finding = CheckFinding(str(fields["check"]), grade, where, step, since, text, evidence, ranks, onset)
    return CheckLine(finding, str(fields.get(PROGRAM, "")))
