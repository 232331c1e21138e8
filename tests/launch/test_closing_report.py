"""The report of ``probe run``: of what the processes of a node have written to its board."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from probe.core.run_state import progress
from probe.launch.parent.vigil import ENDED, NOTHING, Vigil
from tests.launch.test_parent import environment
from tests.quick_python import probe_command

RANK = """
    import os, sys
    import numpy as np
    from probe.core.sentinel.board import Board
    from probe.core.sentinel.rank_lines import RankLine
    from probe.core.sentinel.watch_summary import LossSpan, WatchSummary
    from probe.core.verdict import JudgedFinding, Looked

    board, rank = Board.of(os.environ), int(os.environ.get("RANK", "0"))

    def summary(ended=True, findings=(), steps=20, loss=LossSpan(2.5, 1.5, 19, 20, 19), number=0, **more):
        looked = Looked(("gradients in 5 of 20 steps",), ("activations",))
        launch, why = os.environ.get("MASTER_PORT", ""), "step_interval is 4"
        board.summary(WatchSummary(rank, os.getpid(), number, number, launch, steps, steps, 5, why, loss,
            tuple(findings), looked, "", f"out/rank{rank}", 0, ended, **more))
"""
TWO = """
    import os, subprocess, sys
    ranks = [subprocess.Popen([sys.executable, "rank.py"], env={**os.environ, "RANK": str(rank), "MASTER_PORT": "1"})
             for rank in range(2)]
    raise SystemExit(max(rank.wait() for rank in ranks))
"""


def ran(folder: Path, text: str, ranks: int = 1) -> subprocess.CompletedProcess[str]:
    """Run a program of one rank or two under the parent."""
    (folder / "rank.py").write_text(textwrap.dedent(RANK) + textwrap.dedent(text))
    (folder / "two.py").write_text(textwrap.dedent(TWO))
    own = environment(MONITOR_OUTPUT_DIR=str(folder / "out"))
    script = "rank.py" if ranks == 1 else "two.py"
    return subprocess.run(
        probe_command("run", script), cwd=folder, env=own, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("print('trained')", 0, f"probe: info: {NOTHING}\n"),
        ("print('trained'); raise SystemExit(3)", 3, f"probe: info: {ENDED.template.format(status='exit code 3')}\n"),
        ("print('trained')\nfrom probe.launch.failures import unwatched\nunwatched('why')", 0, "probe: warning: why\n"),
    ],
    ids=["no optimizer", "failed", "told by itself"],
)
def test_a_program_that_was_not_watched_is_told_once(tmp_path: Path, text: str, code: int, said: str) -> None:
    """By the program's own process if that knows why, else by its parent."""
    done = ran(tmp_path, text)
    assert (done.returncode, done.stdout, done.stderr) == (code, "trained\n", said)


def test_a_run_in_which_nothing_was_found_is_a_few_lines(tmp_path: Path) -> None:
    """What was looked at and was not, steps, those recorded and why, and the loss; the exit code is the program's."""
    done = ran(tmp_path, "summary(); raise SystemExit(3)")
    assert done.returncode == 3
    assert done.stderr == (
        "probe: info: nothing found in gradients in 5 of 20 steps\n"
        "probe:   not looked at: activations\n"
        "probe:   20 steps watched, 5 of them recorded (step_interval is 4)\n"
        "probe:   loss 2.5 to 1.5\n"
        "probe:   files in out/rank0\n"
    )


def test_a_finding_is_a_verdict_before_what_was_watched(tmp_path: Path) -> None:
    """With the step at which the loss was finite last, and the command that opens the page."""
    text = """
    nan = float("nan")
    finding = JudgedFinding("critical", "NaN", ("head.bias",), 17, 17, "NaN of head.bias", {"norm": nan}, after=13)
    summary(findings=[finding._replace(located=False)], loss=LossSpan(2.5, nan, 16, 20, 19))
    """
    *verdict, _, loss, files = ran(tmp_path, text).stderr.splitlines()
    assert (loss, files) == ("probe:   loss 2.5 to nan, last finite at step 16", "probe:   files in out/rank0")
    assert verdict[0] == "probe: warning: critical: NaN, first seen in head.bias, between steps 13 and 17"
    assert "probe:   the layer in which it began cannot be named: steps 14 to 16 were not recorded" in verdict
    assert verdict[-2:] == [
        "probe:   next: `probe anomalies out/rank0` shows more",
        "probe:   open: probe view 'out/rank0#step=17'",
    ]


def test_a_process_that_was_killed_is_no_run_without_findings(tmp_path: Path) -> None:
    """What it had written is reported, and that nothing is known later."""
    done = ran(tmp_path, "import signal; summary(ended=False); os.kill(os.getpid(), signal.SIGKILL)")
    assert done.returncode == -9
    assert "probe: warning: rank 0 ended without a report: nothing is known after step 19" in done.stderr
    assert "nothing found" not in done.stderr


def test_the_lines_of_a_killed_process_show_how_far_it_came(tmp_path: Path) -> None:
    """Its summary is older."""
    text = """
    import signal
    lines = board.lines(rank, ["a"])
    summary(ended=False, steps=3, loss=LossSpan(2.5, 2.4, 2, 3, 2))
    for step in range(3, 12):
        lines.write(RankLine(step, 0, 2.0 if step < 11 else np.inf, np.ones((1, 2))))
    os.kill(os.getpid(), signal.SIGKILL)
    """
    done = ran(tmp_path, text)
    assert "12 steps watched" in done.stderr
    assert "stood still" not in done.stderr
    assert "loss 2.5 to inf, last finite at step 10" in done.stderr
    assert "nothing is known after step 11" in done.stderr


def test_a_process_that_is_killed_while_it_stands_still(tmp_path: Path) -> None:
    """Its progress is older than the budget of its steps; the clock of this one is a hundred seconds late."""
    text = """
    import signal
    from probe.core.run_state import progress
    now = progress.monotonic_ns
    progress.monotonic_ns = lambda: now() - 100 * 10**9
    marks = progress.Progress(board.folder, rank, 1, "job", False)
    for step in range(20):
        marks.step(step)
    summary(ended=False, budget=(60.0, 1800.0))
    os.kill(os.getpid(), signal.SIGKILL)
    """
    assert "nothing is known after step 19; rank 0 stood still for 10" in ran(tmp_path, text).stderr


def test_a_rank_that_stands_still_is_named_while_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once for each standstill, the rank that is least far; not before its budget is over, nor for time in which the
    parent itself was stopped."""
    now, vigil = [10**12], Vigil(tmp_path, "a")
    monkeypatch.setattr("probe.core.run_state.progress.monotonic_ns", lambda: now[0])
    monkeypatch.setattr("probe.launch.parent.vigil.time.monotonic_ns", lambda: now[0])
    ranks = [progress.Progress(tmp_path, rank, 2, "job", False) for rank in range(1)]

    def look(seconds: int, at_once: bool = False) -> str:
        for _ in range(1 if at_once else seconds):
            now[0] += (seconds if at_once else 1) * 10**9
            vigil.look()
        return capsys.readouterr().err

    for step in range(20):
        ranks[0].step(step)
        now[0] += 10**9
    (tmp_path / f"summary-0-{os.getpid()}-0.json").write_text('{"budget": [60.0, 1800.0]}')
    assert look(50) == ""
    said = look(50)
    assert said.startswith("probe: info: rank 0 has made no update since step 19, for 6")
    assert f"`py-spy dump --pid {os.getpid()}` shows which" in " ".join(said.replace("probe:  ", "").split())
    assert said.count("made no update") == 1
    ranks[0].step(20)
    assert look(80) == ""  # the pause of 100 seconds was none: the budget has grown
    assert look(1000, at_once=True) == ""
    assert "since step 20" in look(350)


def test_several_runs_of_a_program_are_reported_each(tmp_path: Path) -> None:
    """In their order, as for two stages of training; one without a step is left out."""
    done = ran(tmp_path, "summary(steps=7, number=1); summary(steps=20); summary(steps=0, number=2)")
    assert [line.split()[1] for line in done.stderr.splitlines() if "watched" in line] == ["20", "7"]


def test_ranks_of_a_node_are_one_report(tmp_path: Path) -> None:
    """With a finding that both have once, with the ranks."""
    text = """
    finding = JudgedFinding("warning", "spike", ("loss",), 8, 8, "the loss leaps", {"loss": 9.0})
    summary(findings=[finding], steps=20 - rank)
    """
    done = ran(tmp_path, text, 2)
    first, *_, steps, loss, files = done.stderr.splitlines()
    assert steps.startswith("probe:   19 to 20 steps watched on 2 ranks, ")
    assert (loss, files) == ("probe:   loss 2.5 to 1.5", "probe:   files in out")
    assert first == "probe: warning: warning: spike in loss, step 8, ranks 0-1"


LINES = """
    lines = board.lines(rank, ["a", "b"], replicas=(0, 1))
    for step in range(20):
        numbers = np.random.default_rng(step).normal(size=(2, 2))
        if step >= {begin} and rank == 1:
            numbers[1] *= 1.5
        lines.write(RankLine(step, 0, rank + step / 10, numbers))
    summary()
"""


@pytest.mark.parametrize("begin", [12, 100], ids=["different", "equal"])
def test_the_parent_compares_the_ranks_of_its_node(tmp_path: Path, begin: int) -> None:
    """Also those of a program that ends within a second. What it finds is in the report, and in the output folder."""
    done = ran(tmp_path, LINES.format(begin=begin), 2)
    assert done.returncode == 0
    file = tmp_path / "out" / "checks.jsonl"
    if begin == 100:
        assert "nothing found in gradients in 5 of 20 steps and the gradients of ranks 0-1 at 20 updates" in done.stderr
        assert not file.exists()
        return
    assert "probe: warning: critical: replicas-differ in b, step 12, ranks 0-1" in done.stderr
    (line,) = map(json.loads, file.read_text().splitlines())
    assert (line["check"], line["ranks"], line["since"], line["where"]) == ("replicas-differ", [0, 1], 12, ["b"])
    assert line["program"]


def test_what_is_no_summary_costs_no_exit_code(tmp_path: Path) -> None:
    """A damaged file is left out, another that can be read is reported."""
    text = """
    (board.folder / "summary-7-1-0.json").write_text("{")
    (board.folder / "rank7-1-0.lines").write_text("x")
    (board.folder / "rank8-1-0.lines").write_text("x")
    summary()
    """
    done = ran(tmp_path, text)
    assert done.returncode == 0
    assert "20 steps watched" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_report_that_takes_too_long_is_replaced_by_a_command(tmp_path: Path) -> None:
    """What the ranks have written is no file; the exit code is the program's."""
    text = """
    import os
    from pathlib import Path
    from probe.launch.parent.program import end_within
    from probe.launch.parent.vigil import Vigil
    os.mkfifo("rank0-1-0-of2.lines")  # whoever opens it waits
    vigil = Vigil(Path(), "a")
    end_within(0.1, 3 << 8, vigil.late)
    vigil.report()
    """
    command = [sys.executable, "-c", textwrap.dedent(text)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (
        3,
        "probe: warning: the report is not ready in time: `probe anomalies` prints it\n",
    )


def test_a_report_that_nobody_takes_ends_in_time(tmp_path: Path) -> None:
    """Standard error is a full pipe without a reader: the exit code comes within five seconds."""
    fill = """
    os.set_blocking(2, False)
    try:
        while True:
            os.write(2, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(2, True)
    raise SystemExit(6)
    """
    assert ran(tmp_path, "summary()").returncode == 0  # rank.py is there now
    (tmp_path / "full.py").write_text((tmp_path / "rank.py").read_text() + textwrap.dedent(fill))
    process = subprocess.Popen(probe_command("run", "full.py"), cwd=tmp_path, env=environment(), stderr=subprocess.PIPE)
    assert process.wait(timeout=20) == 6
    process.communicate()
