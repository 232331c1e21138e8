"""Findings of the checks of the loop in the diagnosis: listed for people and machines, and counted by the exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from probe.cli import app
from probe.core.checks.check import CheckFinding
from probe.core.storage.check_lines import CheckLines
from probe.core.storage.run_directory import write_manifest
from tests.core.analysis.test_report import PageFile
from tests.required import require

require("duckdb")

STALE = CheckFinding("stale-gradient", "warning", (), 3, 1, "nothing clears them", {"gradients": 8})
NOTE = CheckFinding("no-gradient", "note", ("head",), 2, 0, "1 of 8 parameters have no gradient", {})
HEADER = "vpp_stage,name,step,norm,shape,dtype\n"


@pytest.fixture
def ranks(tmp_path: Path) -> list[Path]:
    """Directories of two ranks of a program, in whose rows nothing is wrong."""
    directories = [tmp_path / "out" / f"Dec03_21-34-40-rank{rank}-0123abcd" for rank in range(2)]
    for rank, directory in enumerate(directories):
        directory.mkdir(parents=True)
        rows = "".join(f"0,fc.weight,{step},1.0,[2],torch.float32\n" for step in range(20))
        (directory / "grad_reduced_0-99.csv").write_text(HEADER + rows)
        write_manifest(directory, {"rank": rank, "world_size": 2, "program": "one"})
    return directories


def run(root: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["anomalies", str(root), *options])


def listed(root: Path, *options: str) -> list[dict[str, Any]]:
    """Return the findings for machines."""
    findings: list[dict[str, Any]] = json.loads(run(root, "--json", *options).stdout)["findings"]
    return findings


def test_findings_of_a_rank_are_listed_by_the_step_in_which_they_began(ranks: list[Path]) -> None:
    """For people with grade, check, rank, step and sentence; the exit code is 1."""
    CheckLines(ranks[1]).write([STALE, NOTE])
    root = ranks[0].parent
    note, stale = listed(root)
    assert (note["grade"], note["kind"], note["where"], note["rank"], note["step"]) == (
        "note",
        "no-gradient",
        "head",
        1,
        0,
    )
    assert (stale["grade"], stale["kind"], stale["where"], stale["step"], stale["found"]) == (
        "warning",
        "stale-gradient",
        "",
        1,
        3,
    )
    done = run(root)
    assert done.exit_code == 1
    assert "  warning: stale-gradient, rank 1, step 1: nothing clears them" in done.stdout


def test_notes_alone_leave_the_exit_code(ranks: list[Path]) -> None:
    """They are listed, and no alarm."""
    CheckLines(ranks[0]).write([NOTE])
    done = run(ranks[0].parent)
    assert done.exit_code == 0
    assert "note: no-gradient" in done.stdout


def test_findings_between_ranks_are_those_of_the_program(ranks: list[Path]) -> None:
    """The folder of all has those of other programs, too."""
    differ = STALE._replace(check="replicas-differ", ranks=(0, 1))
    lines = CheckLines(ranks[0].parent)
    lines.write([differ], "one")
    lines.write([differ], "other")
    (entry,) = listed(ranks[0].parent)
    assert (entry["kind"], entry["rank"]) == ("replicas-differ", [0, 1])


def test_chosen_steps_choose_findings(ranks: list[Path]) -> None:
    """By the step in which one began, or was found."""
    CheckLines(ranks[0]).write([STALE])
    root = ranks[0].parent
    assert len(listed(root, "--steps", "1")) == len(listed(root, "--steps", "3")) == 1
    assert listed(root, "--steps", "2") == []


def test_a_packed_run_has_the_same_findings(ranks: list[Path], tmp_path: Path) -> None:
    """Packing keeps the files of the checks, that of the folder, too."""
    CheckLines(ranks[1]).write([STALE])
    CheckLines(tmp_path / "out").write([STALE._replace(check="replicas-differ", ranks=(0, 1))], "one")
    packed = tmp_path / "packed"
    done = CliRunner().invoke(app, ["pack", str(tmp_path / "out"), "--out", str(packed)])
    assert done.exit_code == 0, done.output
    assert len(listed(packed)) == 2
    assert listed(packed) == listed(tmp_path / "out")


def test_the_report_has_them(ranks: list[Path], tmp_path: Path) -> None:
    """In the card of the diagnosis."""
    CheckLines(ranks[1]).write([STALE])
    done = CliRunner().invoke(app, ["report", str(tmp_path / "out"), "--out", str(tmp_path / "report.html")])
    assert done.exit_code in (0, 1), done.output
    assert "stale-gradient, rank 1, step 1" in str(PageFile(tmp_path / "report.html").answers)
