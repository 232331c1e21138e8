"""Files of the findings of checks: written whole, read as far as they go."""

from __future__ import annotations

import json
import math
from pathlib import Path

from probe.core.checks.check import CheckFinding
from probe.core.storage.check_lines import CHECKS, CheckLines, check_line, read_check_lines
from probe.core.storage.problems import Problems

FINDING = CheckFinding(
    "loss-not-finite", "critical", ("a.weight", "b"), 12, 10, "the loss is nan", {"loss": math.nan, "norm": 2.5}, (0, 3)
)


def test_findings_are_read_as_they_were_written(tmp_path: Path) -> None:
    """Also numbers that JSON lacks, and the program of those between ranks."""
    lines = CheckLines(tmp_path)
    lines.write([FINDING, FINDING._replace(step=13)])
    lines.write([FINDING._replace(ranks=(), evidence={})], "program")
    problems = Problems()
    first, second, third = read_check_lines(tmp_path / CHECKS, problems)
    assert first.finding._replace(evidence={}) == FINDING._replace(evidence={})
    assert str(dict(first.finding.evidence)) == "{'loss': nan, 'norm': 2.5}"
    assert (second.finding.step, second.program, third.program, third.finding.ranks) == (13, "", "program", ())
    assert all(json.loads(line) for line in (tmp_path / CHECKS).read_text().splitlines())
    assert not problems.number


def test_a_cut_last_line_is_left_out_and_replaced(tmp_path: Path) -> None:
    """It may be in the making; a later writer removes it."""
    path = tmp_path / CHECKS
    path.write_text(check_line(FINDING) + check_line(FINDING)[:40])
    problems = Problems()
    assert len(list(read_check_lines(path, problems))) == 1
    assert not problems.number
    CheckLines(tmp_path).write([FINDING])
    assert len(list(read_check_lines(path, problems))) == 2


def test_damaged_lines_are_recorded_and_the_others_read(tmp_path: Path) -> None:
    """No JSON, another grade, a step that is none, and a missing field."""
    fields = json.loads(check_line(FINDING))
    bad = [fields | {"grade": "awful"}, fields | {"step": -1}, fields | {"where": 3}, {"check": "loss-leap"}, [1]]
    text = "".join([*(json.dumps(each) + "\n" for each in bad), "{\n", check_line(FINDING)])
    (tmp_path / CHECKS).write_text(text)
    problems = Problems()
    assert len(list(read_check_lines(tmp_path / CHECKS, problems))) == 1
    assert [str(problem).rpartition(": ")[2] for problem in problems.kept] == ["6"]


def test_no_file_is_no_finding(tmp_path: Path) -> None:
    """Runs without findings, and those of other tools, have no file."""
    problems = Problems()
    assert not list(read_check_lines(tmp_path / CHECKS, problems))
    assert not problems.number
