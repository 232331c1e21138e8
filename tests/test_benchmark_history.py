"""Repeated benchmarks: a busy machine is refused, the median run is published, costlier figures are found."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
QUIET = "cpu 1000 0 0 9000 0 0 0 0 0 0\n"
BENCHMARK = """
import sys
from pathlib import Path
sys.path.insert(0, {benchmarks!r})
from _history import Figure
from _report import arguments, publish

args = arguments("", rounds=1).parse_args()
turn = Path({turns!r})
turns = len(turn.read_text()) + 1
turn.write_text("." * turns)
value = [3.0, 1.0, 2.0][turns - 1]
if {busy}:
    Path({stat!r}).write_text(f"cpu {{turns}}{{'0' * 14}} 0 0 0 0 0 0 0 0 0")
publish("Cost", [f"A step costs {{value}}."], args.output, "numpy", {{"a step": Figure(value, value, value)}})
"""


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Import a module of the benchmarks, whose folder is on the path as for their scripts."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module


@pytest.mark.parametrize(
    ("others", "stolen", "spread", "words"),
    [(0.1, 0.05, 0.1, []), (0.2, 0.0, 0.0, ["other processes used 0.20 cores"]), (0.0, 0.06, 0.0, ["hypervisor"]),
     (0.0, 0.0, 0.2, ["plain step lay 20% apart"]), (1.0, 1.0, 1.0, ["other", "hypervisor", "plain"])],
)  # fmt: skip
def test_load_stolen_time_and_spread_make_a_machine_busy(
    modules: Any, others: float, stolen: float, spread: float, words: list[str]
) -> None:
    """Each reason has its sentence with the figure and the limit; at the limits a machine is quiet."""
    quiet = modules("_quiet")
    found = quiet.disturbances(quiet.Activity(others, stolen), spread)
    assert len(found) == len(words)
    assert all(word in reason and "at most" in reason for word, reason in zip(words, found, strict=True))


def test_activity_is_read_from_the_kernels_counts(modules: Any, tmp_path: Path) -> None:
    """Seconds of all processes less those of this one, and those that a hypervisor withheld, by the time between."""
    stat = tmp_path / "stat"
    stat.write_text(QUIET)
    until_now = modules("_quiet").activity_since(stat)
    stat.write_text("cpu 1000000 0 0 9000 500 0 0 2000000 0 0\n")
    found = until_now()
    assert found.stolen / found.others == pytest.approx(2000000 / 999000, rel=0.01)
    assert found.others > 10
    absent = modules("_quiet").activity_since(tmp_path / "absent")
    assert absent() == (0.0, 0.0)


def test_the_spread_is_the_distance_of_the_quartiles(modules: Any) -> None:
    """As a fraction of the median, so that an outlier does not count."""
    seconds = np.array([0.9, 1.0, 1.0, 1.1, 50.0])
    low, high = np.quantile(seconds, [0.25, 0.75])
    assert modules("_quiet").spread(seconds) == pytest.approx(high - low)


@pytest.mark.parametrize(
    ("runs", "median"),
    [([[3], [1], [2]], 2), ([[1, 9], [2, 8], [3, 7]], 1), ([[1, 2, 2], [2, 1, 1], [3, 3, 3]], 0), ([[5]], 0)],
)
def test_the_median_run_is_nearest_to_the_middle_of_all_figures(modules: Any, runs: list[Any], median: int) -> None:
    """By its ranks, so that figures of every unit count alike."""
    history = modules("_history")
    named = [{str(i): history.Figure(value, value, value) for i, value in enumerate(run)} for run in runs]
    assert history.median_run(named) == median


def line(commit: str, value: float, room: float = 0.0, **more: Any) -> dict[str, Any]:
    """A line of the history."""
    about = {"commit": commit, "changed": False, "processor": "p", "benchmark": "b", "arguments": "", "busy": []}
    return {**about, "published": True, "figures": {"f": [value, value - room, value + room]}, **more}


@pytest.mark.parametrize(
    ("history", "verdicts"),
    [
        ([line("a", 1.0), line("b", 1.06)], ["COSTLIER"]),
        ([line("a", 1.0), line("b", 1.04)], ["as before"]),
        ([line("a", 1.0, 0.05), line("b", 1.08, 0.05)], ["as before"]),  # intervals overlap
        ([line("a", 1.0), line("b", 1.04), line("c", 1.08)], ["COSTLIER"]),  # by small steps
        ([line("a", 1.0), line("b", 0.9)], ["cheaper"]),
        ([line("a", -0.01), line("b", 0.01)], ["COSTLIER"]),
        ([line("a", 1.0), line("b", 1.0, processor="other")], []),
        ([line("a", 1.0), line("b", 1.0, arguments="--rounds 3")], []),
        ([line("a", 1.0), line("b", 2.0, busy=["x"])], []),
        ([line("a", 1.0), line("b", 9.0, published=False), line("b", 1.0)], ["as before"]),
        ([line("a", 1.0), line("a", 2.0)], []),
        ([line("a", 1.0), line("a", 2.0, changed=True)], ["COSTLIER"]),
        ([], []),
    ],
)
def test_a_figure_is_compared_with_the_cheapest_of_other_commits(
    modules: Any, history: list[Any], verdicts: list[str]
) -> None:
    """Costlier by more than 5 % and with its whole interval; only results of equal processor and arguments, of quiet
    machines, published."""
    assert [change.verdict for change in modules("_history").changes(history)] == verdicts


def test_the_comparison_fails_where_a_figure_is_costlier(tmp_path: Path) -> None:
    """The command exits with 1 and names the figure; without results of two commits it states that."""

    def compare(*lines: dict[str, Any]) -> tuple[int, str]:
        (tmp_path / "history.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
        command = [BENCHMARKS / "_history.py", "--history", tmp_path / "history.jsonl", "--processor", "p"]
        done = subprocess.run([sys.executable, "-S", *command], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    code, out = compare(line("a", 1.0), line("b", 2.0))
    assert (code, "| b: f | 1 (1 to 1) at a | 2 (2 to 2) | COSTLIER |" in out) == (1, True)
    code, out = compare(line("a", 1.0))
    assert (code, out.startswith("Nothing to compare")) == (0, True)


@pytest.fixture
def repeat(tmp_path: Path) -> Any:
    """Repeat a benchmark, whose step costs 3, 1 and 2; return exit code, output, errors and history. If others are
    ``busy``, they use years of processors in each run."""
    script, stat, kept = tmp_path / "cost.py", tmp_path / "stat", tmp_path / "history.jsonl"
    turns = tmp_path / "turns"

    def run(*arguments: str, busy: bool = False) -> tuple[int, str, str, list[dict[str, Any]]]:
        places = {"benchmarks": str(BENCHMARKS), "turns": str(turns), "stat": str(stat), "busy": busy}
        script.write_text(BENCHMARK.format(**places))
        turns.write_text("")
        stat.write_text(QUIET)
        options = ["--history", kept, "--stat", stat, "--window", "0", *arguments]
        command = [sys.executable, BENCHMARKS / "_repeat.py", script, "--", *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = kept.read_text().splitlines() if kept.exists() else []
        return done.returncode, done.stdout, done.stderr, [json.loads(each) for each in lines]

    return run


def test_three_runs_are_kept_and_the_median_one_is_published(repeat: Any, tmp_path: Path) -> None:
    """With its arguments, its processor and its commit; the text is printed and written."""
    code, out, _, history = repeat("--output", str(tmp_path / "texts"), "--rounds", "7")
    assert code == 0
    assert "The median of 3 runs.\n\nA step costs 2.0." in out
    assert (tmp_path / "texts" / "cost.md").read_text() in out
    found = [(each["figures"]["a step"][0], each["published"], each["arguments"]) for each in history]
    assert found == [(3, False, "--rounds 7"), (1, False, "--rounds 7"), (2, True, "--rounds 7")]
    assert all(each["processor"] and each["commit"] and each["benchmark"] == "cost" for each in history)


def test_a_busy_machine_is_refused(repeat: Any) -> None:
    """After twice as many runs as count: the reason is printed, nothing is published or kept."""
    code, out, errors, history = repeat("--repeat", "1", busy=True)
    assert (code, out.strip().splitlines()[1:], history) == (2, [], [])
    assert re.search(r"refused, the machine is busy: other processes used \d+\.\d\d cores.*0 of 1 runs", errors)


def test_a_result_of_a_busy_machine_has_the_reasons(repeat: Any) -> None:
    """In its text and in the history."""
    code, out, _, history = repeat("--repeat", "1", "--even-if-busy", busy=True)
    assert code == 0
    assert "**The machine was busy, so that these figures need not repeat:** other processes used" in out
    assert ["other processes used" in reason for each in history for reason in each["busy"]] == [True]
