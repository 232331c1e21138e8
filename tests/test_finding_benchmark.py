"""Benchmark of finding power: cases are complete, judgements are those of the definition, and a pair of twins runs."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import user_scripts
from tests.quick_python import quick_python
from tests.required import require

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Modules of the benchmark, whose folder is on the path as for its script."""
    require("torch")
    monkeypatch.syspath_prepend(str(BENCHMARKS / "faults"))
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import _finding
    import _finding_runs
    import case

    return SimpleNamespace(judgement=_finding, runs=_finding_runs, case=case)


def entry(**fields: Any) -> dict[str, Any]:
    """Finding as ``probe anomalies --json`` has it."""
    return {"grade": "warning", "kind": "replicas-differ", "where": "layers.1.up", "rank": 1, "step": 80, **fields}


@pytest.mark.torch
def test_each_case_is_complete(benchmark: Any) -> None:
    """Each case has links to its sources, a label, kinds, and a step that its run has."""
    found = benchmark.runs.cases()
    assert len(found) >= 40
    for name, case in found.items():
        assert {bool(re.fullmatch(r"https://\S+/\S+", link)) for link in case.sources} == {True}, name
        assert case.label in benchmark.case.LABELS, name
        assert {bool(kind) for kind in case.kinds} == {True}, name
        assert 0 <= case.start <= case.steps - benchmark.judgement.LATEST, name
        assert set(case.ranks) <= set(range(case.world)), name


@pytest.mark.torch
def test_healthy_programs_are_complete(benchmark: Any) -> None:
    """At least 24 programs are named by their first line; six of them have steps of a few milliseconds."""
    scripts = benchmark.runs.healthy_programs()
    assert len(scripts) >= 24
    assert all(ast.get_docstring(ast.parse(path.read_text("utf-8"))) for path in scripts.values())
    assert sum(benchmark.runs.constant(path, "LONG", False) for path in scripts.values()) == 6


@pytest.mark.torch
@pytest.mark.parametrize(
    ("fields", "found", "place", "step"),
    [
        ({}, True, True, True),
        ({"step": 90}, True, True, False),
        ({"step": 91}, False, False, False),
        ({"step": 79}, False, False, False),
        ({"grade": "note"}, False, False, False),
        ({"kind": "same-data"}, False, False, False),
        ({"rank": 0}, True, False, True),
        ({"rank": [0, 1]}, True, True, True),
        ({"where": "head"}, True, False, True),
    ],
)
def test_a_finding_counts_by_grade_kind_and_step(
    benchmark: Any, fields: dict[str, Any], found: bool, place: bool, step: bool
) -> None:
    """Grade, kind and step decide whether a fault is found; place and rank, whether its place is right."""
    case = benchmark.case.Case(("https://a/b",), "ranks", ("replicas-differ",), 80, ("layers.1.*",), (1,), 2)
    judged = benchmark.judgement.judge(case, [entry(**fields)], [])
    assert (judged.found, judged.place, judged.step) == (found, place, step)


@pytest.mark.torch
def test_a_finding_in_the_healthy_twin_is_a_false_alarm(benchmark: Any) -> None:
    """A warning of any kind in the healthy twin spoils the case; a note and the speed of steps do not."""
    case = benchmark.case.Case(("https://a/b",), "ranks", ("replicas-differ",), 80)
    judged = benchmark.judgement.judge(case, [entry()], [entry(kind="dead layer", step=3)])
    assert (judged.found, judged.false_alarms) == (False, 1)
    quiet = [entry(grade="note"), entry(kind="RunSlow")]
    assert benchmark.judgement.judge(case, [entry()], quiet).found


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(("twin", "fails"), [("faulty", False), ("healthy", True), ("", True)])
def test_silence_of_a_healthy_run_counts_only_if_it_was_judged(
    benchmark: Any, tmp_path: Path, twin: str, fails: bool
) -> None:
    """A healthy run without files has failed; a faulty one is not found."""
    outcome = benchmark.runs.judged(benchmark.runs.Program("x", tmp_path, twin, 0, None, 1, {}), "run", tmp_path, 0.0)
    assert (bool(outcome.error), outcome.findings) == (fails, [])


@pytest.mark.torch
@pytest.mark.slow
def test_both_twins_of_a_case_run(tmp_path: Path) -> None:
    """The program trains both twins under ``probe run``, and has their findings and what was expected in its file."""
    require("torch")
    command = [str(BENCHMARKS / "finding.py"), "--cases", "no_zero_grad", "--seeds", "0", "--json", "result.json"]
    done = subprocess.run(
        [quick_python(*user_scripts.TORCH), *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    result = json.loads((tmp_path / "result.json").read_text("utf-8"))
    assert done.returncode == 0, done.stdout
    assert result["cases"]["no_zero_grad"]["expected"]["label"] == "loop"
    whole = {"value": 1.0, "low": 1.0, "high": 1.0}
    assert result["shares"]["all"] == {"found": whole, "place": whole, "step": whole}
    assert "| loop | 1 | 1 of 1 (100 %, 100 to 100) |" in done.stdout
    assert {key: run["error"] for key, run in result["runs"].items()} == {
        "no_zero_grad-faulty-0": "",
        "no_zero_grad-healthy-0": "",
    }
    assert all(run["judged"]["rows"] for run in result["runs"].values())
