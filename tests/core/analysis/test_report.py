"""Tests of `probe report` from the outside: the file, its size, its text, and problems of the input."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from probe.cli import app
from probe.core.analysis.pictures.static_page import static_page
from probe.core.analysis.report import findings as diagnosing
from probe.core.analysis.report.findings import Diagnosis, Mark, dumped, preliminary
from probe.core.analysis.report.write import write_report
from probe.core.output.sinks.anomaly import AnomalyFile
from probe.core.output.sinks.context import SinkContext
from probe.core.records import Key
from probe.core.storage.directories import RankDirectory, RecordedRun
from probe.core.storage.manifest import Manifest
from probe.core.storage.problems import Problems
from tests.core.analysis.report_data import write_run
from tests.core.output.sink_data import finding
from tests.packed_text import unpacked_text
from tests.required import require

pytestmark = pytest.mark.slow

require("duckdb")


class PageFile(HTMLParser):
    """Elements of a page from a file, and the answers in it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.titles: list[str] = []
        self._name = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._name = tag if tag == "title" else dict(attrs).get("id") or ""

    def handle_data(self, data: str) -> None:
        if self._name == "title":
            self.titles.append(data)
        elif self._name == "cells":
            self.cells = data
        elif self._name == "answers":
            self.answers: dict[str, Any] = json.loads(unpacked_text(data))
        self._name = ""

    def answer(self, name: str = "") -> Any:
        """The answer about the run, or about a part of it."""
        return self.answers["/api/runs/0" + f"/{name}" * bool(name)]


def run(*arguments: object) -> tuple[int, str]:
    """The exit code of ``probe report`` and all that it prints."""
    result = CliRunner().invoke(app, ["report", *map(str, arguments)])
    return result.exit_code, result.output


def test_a_healthy_run_gives_a_page_and_exit_code_0(tmp_path: Path) -> None:
    """The run, its signals and costs are there; no problem is listed."""
    write_run(tmp_path, cost_seconds={"hooks": 3.0, "drain": 1.0, "delivery": 0.5, "steps": 8.0})
    out = tmp_path / "page.html"
    code, printed = run(tmp_path, "-o", out)
    assert code == 0, printed
    assert f"{out} ({out.stat().st_size / 1e6:.1f} MB): 84 rows of 2 ranks" in printed
    page = PageFile(out)
    shown = page.answer()
    assert (shown["health"], shown["cause"], shown["problems"]) == ("healthy", None, [])
    assert (shown["facts"]["framework"], shown["rank_list"]) == ("pytorch", "0-1")
    assert "Nothing was found" in shown["summary"]
    assert [signal["name"] for signal in shown["signals"]] == ["actv", "grad_reduced"]
    assert page.answer("details")["costs"][0][:6] == [0, "8", "3.00", "1.00", "500.00", "0.50"]  # 4 s / 8 steps in ms


def test_the_first_bad_number_is_named(tmp_path: Path) -> None:
    """Without any analysis the card has the first number that is not finite, in the order of a step's course."""

    def value(step: int, rank: int, micro_step: int, row: int) -> float:
        return math.nan if (step, rank, row) >= (3, 1, 1) else 1.0

    write_run(tmp_path, ranks=2, value=value)
    code, printed = run(tmp_path, "--no-judge", "-o", tmp_path / "page.html")
    assert code == 0
    assert "NaN at step 3, micro step 0, on rank 1: norm of fc2.output" in printed
    cause = PageFile(tmp_path / "page.html").answer()["cause"]
    assert [cause[name] for name in ("kind", "row", "op", "rank", "step")] == ["NaN", "fc2.output", "norm", 1, 3]


def test_the_files_are_judged_for_the_first_cause(tmp_path: Path) -> None:
    """The card has the text of ``probe anomalies``, and consequences are classed apart from the cause."""

    def value(step: int, rank: int, micro_step: int, row: int) -> float:
        return math.nan if (step, rank, row) >= (3, 1, 1) else 1.0

    write_run(tmp_path, ranks=2, value=value)
    code, printed = run(tmp_path, "-o", tmp_path / "page.html")
    said = CliRunner().invoke(app, ["anomalies", str(tmp_path), "--why"]).output
    assert code == 0
    assert printed.startswith("First cause: NaN.")
    assert " ".join(printed.splitlines()[0].split()) in " ".join(said.split())
    shown = PageFile(tmp_path / "page.html").answer()
    assert printed.splitlines()[0] in shown["cause"]["text"]
    assert {finding["cause"] for finding in shown["finding_list"]} >= {"initiating", "cascade"}


def test_a_diagnosis_is_shown_as_it_is_given(tmp_path: Path) -> None:
    """The caller's diagnosis decides the content of the card; the paragraph is text."""
    write_run(tmp_path)
    mark = Mark("AnomalyNan", "grad_reduced", "fc1.weight", "norm", math.inf, 2, 1, cause="initiating")
    given = Diagnosis("It was <b>the</b> batch.\n\nSecond paragraph.", [mark], number=7, note="By hand.")
    write_report(tmp_path, tmp_path / "page.html", given)
    page = PageFile(tmp_path / "page.html")
    shown = page.answer()
    assert shown["cause"]["text"] == "It was <b>the</b> batch.\n\nSecond paragraph.\nBy hand."
    assert (shown["finding_total"], shown["finding_list"][0]["value"]) == (7, "inf")
    assert "b" not in page.tags


def run_of(root: Path, *ranks: int) -> RecordedRun:
    """Directories that a file of findings without a run may be of."""
    return RecordedRun(tuple(RankDirectory(root / f"rank{rank}", rank, "", 0.0, Manifest(), 0) for rank in ranks), ())


def test_findings_of_the_live_rules_are_read_back(tmp_path: Path) -> None:
    """Rule, signal, name, op, value and place come back from anomaly.json; steps of other runs are left out."""
    message = (
        "Rule AnomalySpike reports anomaly signal in ('x', 'norm') at step 4, current value 12.5, history median 1."
    )
    written = [
        finding(4, key=Key("fc.weight"), op="norm", rule="AnomalySpike", rank=1, value=12.5, message=message),
        finding(3, key=Key("fc", "input", 2, 1), op="global_norm", signal="actv", rank=1, micro_stepped=True),
        finding(99, rank=1),
    ]
    AnomalyFile(SinkContext(tmp_path / "run", tmp_path, 1)).write(written)
    problems = Problems()
    marks, number = dumped(tmp_path, run_of(tmp_path, 0, 1), 0, 10, problems)
    assert (number, problems.lines()) == (2, [])
    assert marks[0]._replace(message="")._asdict() == pytest.approx(
        Mark("AnomalyNan", "actv", "fc.input.call1", "global_norm", math.nan, 3, 1, 2, order=7)._asdict(), nan_ok=True
    )
    assert marks[1] == Mark("AnomalySpike", "grad_reduced", "fc.weight", "norm", 12.5, 4, 1, None, "", message, 0, 7)


def test_most_findings_are_counted_and_the_earliest_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory does not grow with the number of findings, and none is forgotten in the count."""
    monkeypatch.setattr(diagnosing, "MOST", 3)
    AnomalyFile(SinkContext(tmp_path / "run", tmp_path, 0)).write([finding(step) for step in (5, 1, 4, 2, 3)])
    marks, number = dumped(tmp_path, run_of(tmp_path, 0), 0, 9, Problems())
    assert ([mark.step for mark in marks], number) == ([1, 2, 3], 5)
    assert preliminary(marks, number, [], None).total == 5


@pytest.mark.parametrize("content", ["", "[1]", '{"a": {"step": 1}}', '{"a": 3}', '{"a"'])
def test_a_broken_file_of_findings_is_told(tmp_path: Path, content: str) -> None:
    """The page is written all the same, and the exit code shows whether data are missing."""
    write_run(tmp_path, ranks=1)
    path = tmp_path / "anomaly_detected" / "rank0" / "anomaly.json"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    code, printed = run(tmp_path, "-o", tmp_path / "page.html")
    assert code == (1 if content else 0)
    assert f"{path}" in printed.replace("\n", "")
    assert any(str(path) in line for line in PageFile(tmp_path / "page.html").answer()["problems"])


def test_what_cannot_be_read_is_told_by_file_and_line_and_the_rest_is_shown(tmp_path: Path) -> None:
    """A wrong cell, a torn line, a foreign and an empty file, a missing rank: all in the page, exit code 1."""
    first, second = write_run(tmp_path, ranks=2, steps=range(6))
    (first / "actv_4-5.csv").write_text("hello,world\n1,2\n")
    wrong = first / "grad_reduced_0-1.csv"
    wrong.write_text(wrong.read_text().replace("0,fc1.bias,1,", "0,fc1.bias,what,"))
    torn = second / "grad_reduced_2-3.csv"
    torn.write_text(torn.read_text()[:-9])
    (second / "actv_0-1.csv").write_text("")
    manifest = json.loads((first / "manifest.json").read_text())
    (first / "manifest.json").write_text(json.dumps({**manifest, "world_size": 3}))
    code, printed = run(tmp_path, "-o", tmp_path / "page.html")
    assert code == 1, printed
    page = PageFile(tmp_path / "page.html")
    said = "\n".join(page.answer()["problems"])
    for told in (
        f"{first}/actv_4-5.csv:1",
        f"{wrong}:6",
        f"{torn}:7",
        f"{second}/actv_0-1.csv",
        "expected ranks 2 too",
    ):
        assert told in said, told
        assert told in printed.replace("\n", ""), told
    assert page.answer()["missing_ranks"] == "2"


@pytest.mark.parametrize("kind", ["empty", "foreign", "absent"])
def test_a_directory_without_a_run_is_wrong_use(tmp_path: Path, kind: str) -> None:
    """Nothing is written, the message has the expected input, and the exit code is 2."""
    directory = tmp_path / kind
    if kind != "absent":
        directory.mkdir()
    if kind == "foreign":
        (directory / "photos").mkdir()
        (directory / "notes.csv").write_text("a,b\n1,2\n")
    out = tmp_path / "page.html"
    code, printed = run(directory, "-o", out)
    assert code == 2
    assert str(directory) in printed
    assert "expected" in printed
    assert not out.exists()


@pytest.mark.parametrize("out", [".", "absent/page.html"])
def test_nowhere_to_write_is_wrong_use(tmp_path: Path, out: str) -> None:
    """The message comes before the files are read."""
    write_run(tmp_path, ranks=1)
    code, printed = run(tmp_path, "-o", tmp_path / out)
    assert code == 2
    assert "expected the name of a file in a directory that exists" in " ".join(printed.split())


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the command that installs it; the exit code is 2."""
    write_run(tmp_path, ranks=1)
    monkeypatch.setitem(sys.modules, "duckdb", None)
    code, printed = run(tmp_path, "-o", tmp_path / "page.html")
    assert code == 2
    assert 'pip install -e ".[analysis]"' in printed


def test_ranks_that_wrote_nothing_give_a_page_that_says_so(tmp_path: Path) -> None:
    """A run that ended before its first step has a page too, which is not green; exit code 1."""
    (directory,) = write_run(tmp_path, ranks=1, steps=[0])
    for path in directory.glob("*.csv"):
        path.unlink()
    code, _ = run(tmp_path, "-o", tmp_path / "page.html")
    assert code == 1
    shown = PageFile(tmp_path / "page.html").answer()
    assert (shown["signals"], shown["health"]) == ([], "incomplete")


def test_files_of_another_tool_need_no_manifest(tmp_path: Path) -> None:
    """Without manifests the numbers are shown all the same."""
    for directory in write_run(tmp_path, ranks=2):
        (directory / "manifest.json").unlink()
    code, printed = run(tmp_path, "-o", tmp_path / "page.html")
    assert code == 0, printed
    details = PageFile(tmp_path / "page.html").answer("details")
    assert (details["directories"], details["ended"], details["costs"]) == (2, 0, [])


@pytest.mark.parametrize("evil", ["</script><script>alert(1)</script>", "<!--", "&lt;", "]]>", "\u2028'\"\\"])
def test_a_page_holds_texts_of_others_as_text(tmp_path: Path, evil: str) -> None:
    """Titles and answers stay what they are, whatever is in them; NaN, which no browser reads, is a text."""
    path = tmp_path / "page.html"
    path.write_text(static_page(evil, {"/api/x": [evil, math.nan]}), encoding="utf-8")
    parsed = PageFile(path)
    assert parsed.tags.count("script") == 7
    assert parsed.titles == [evil]
    assert parsed.answers["/api/x"] == [evil, "nan"]


def test_the_scripts_of_a_page_are_those_that_its_policy_permits() -> None:
    """The Content-Security-Policy has the hash of each script, and no address."""
    text = static_page("t", {})
    (policy,) = re.findall(r'Security-Policy" content="([^"]*)"', text)
    compressed = re.findall(r'data-compressed="script".*?>(.*?)</script>', text)
    scripts = [*re.findall(r"<script>(.*?)</script>", text, re.DOTALL)]
    scripts += [unpacked_text(script).decode() for script in compressed]
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert len(digests) == 3
    assert [f"'sha256-{digest}'" for digest in digests] == re.findall(r"'sha256-[^']*'", policy)
    assert policy.startswith("default-src 'none'; ")
    assert "://" not in policy


def test_a_page_without_numbers_is_small(tmp_path: Path) -> None:
    """Its scripts are compressed; with the numbers of the demonstration it is below 300 kB."""
    path = tmp_path / "page.html"
    path.write_text(static_page("t", {}), encoding="utf-8")
    assert path.stat().st_size < 105_000
