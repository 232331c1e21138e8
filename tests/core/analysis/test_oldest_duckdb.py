"""The last DuckDB for Python 3.10 gives the answers of the newest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.quick_python import quick_python
from tests.required import require, require_version
from tests.simulated_run import ParallelSizes, SimulatedRun
from tests.user_scripts import COMMANDS

require("duckdb")

OLDEST = "duckdb-1.5.6"
RUN = "[1] a*b"
"""Folder whose name DuckDB would take for a pattern."""
ANSWERS = """
import json, sys
import duckdb
from typer.testing import CliRunner
from probe.cli import app

run, out = sys.argv[1:]
query = "SELECT step, rank, name, norm FROM actv ORDER BY ALL LIMIT 50"
pieces = ["--map", "SELECT max(norm) AS m, count(*) AS n FROM grad_reduced", "--reduce"]
pieces += ["SELECT max(m), sum(n) FROM mapped"]
commands = [
    ["anomalies", run, "--json"],
    ["sql", run, query, "--format", "csv"],
    ["sql", run, *pieces, "--format", "csv", "-j", "2"],
    ["report", run, "-o", f"{out}.html"],
    ["pack", run, "-o", out],
    ["anomalies", out, "--json"],
    ["sql", out, query, "--format", "csv"],
    ["compare", run, out],
]
if __name__ == "__main__":
    done = [CliRunner().invoke(app, command) for command in commands]
    assert all(each.exception is None or isinstance(each.exception, SystemExit) for each in done), done
    answers = [(command[0], each.exit_code, each.stdout.replace(out, "OUT")) for command, each in zip(commands, done)]
    print(json.dumps([duckdb.__version__, answers]))
"""


def answers(folder: Path, out: str, python: str, path: list[str]) -> tuple[str, list[list[object]]]:
    """Version of DuckDB, and the exit code and output of each command, in ``folder``."""
    script = folder / "answers.py"
    script.write_text(ANSWERS)
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([*path, *sys.path])}
    command = [python, str(script), RUN, out]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    version, found = json.loads(done.stdout.splitlines()[-1])
    return version, found


def test_the_oldest_gives_the_answers_of_the_newest(tmp_path: Path) -> None:
    """Anomalies, SQL, comparison, report and packed runs, of a folder with characters of patterns in its name."""
    older = require_version(OLDEST)
    SimulatedRun(ParallelSizes(dp=2, tp=1, pp=2), "overflow", 3, rows=8).write(tmp_path / RUN)
    newest, expected = answers(tmp_path, "new", quick_python(*COMMANDS), [])
    oldest, found = answers(tmp_path, "old", sys.executable, [str(older)])
    assert oldest == OLDEST.partition("-")[2] != newest
    for here, there in zip(expected, found, strict=True):
        assert here == there
    assert [code for _, code, _ in expected] == [1, 0, 0, 0, 0, 1, 0, 0]
