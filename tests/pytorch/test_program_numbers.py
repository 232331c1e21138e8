"""Runs that a program under ``probe run`` trains side by side without a launcher: each has a number of its own."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from probe.core.storage.batches import steps
from probe.core.storage.directories import RecordedRun, last_run
from probe.core.storage.duckdb_reader import Rows
from probe.core.storage.problems import Problems
from tests import user_scripts
from tests.quick_python import probe_command, quick_python
from tests.required import require

require("torch")
ROOT = Path(__file__).parents[2]
CONFIG = {"wg_distribution": True, "ops": ["norm", "nans"]}
TRAINING = """
import sys
import torch

def train(number, wait=lambda: None):
    torch.manual_seed(number)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1 + number))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(6):
        loss = model(torch.randn(4, 3)).sum() * (float("nan") if number and step == 4 else 1.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        wait()
"""
PROGRAMS = {
    "spawn": """
import torch.multiprocessing

def work(number, barrier):
    train(number, barrier.wait)

if __name__ == "__main__":
    context = torch.multiprocessing.get_context("spawn")
    torch.multiprocessing.spawn(work, (context.Barrier(2),), nprocs=2)
""",
    "fork": """
import os
import multiprocessing
barrier = multiprocessing.get_context("fork").Barrier(2)
children = []
for number in (0, 1):
    if not (child := os.fork()):
        train(number, barrier.wait)
        sys.exit()
    children.append(child)
for child in children:
    os.waitpid(child, 0)
""",
    "one after the other": """
import subprocess
if len(sys.argv) > 1:
    train(0)
else:
    for _ in range(2):
        subprocess.run([sys.executable, __file__, "again"], check=True)
""",
    "two models": """
from probe.pytorch import TrainerMon
monitors = []
for number in (0, 1):
    model = torch.nn.Linear(3, 1 + number)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    monitor = TrainerMon({"wg_distribution": True, "ops": ["norm", "nans"]})
    monitor.set_monitor(model, 1, optimizer)
    monitors.append((number, model, optimizer))
for step in range(6):
    for number, model, optimizer in monitors:
        (model(torch.randn(4, 3)).sum() * (float("nan") if number and step == 4 else 1.0)).backward()
        optimizer.step()
        optimizer.zero_grad()
""",
}


def watched(name: str, folder: Path) -> tuple[RecordedRun, Problems, Path]:
    """The last run of a watched program, what its reader finds, and the output directory."""
    (folder / "train.py").write_text(TRAINING + PROGRAMS[name], encoding="utf-8")
    (folder / "monitor.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MONITOR_OUTPUT_DIR": str(folder / "out")}
    program = [quick_python(*user_scripts.TORCH), "train.py"]
    command = probe_command("run", "--config", "monitor.json", "--", *program, modules=user_scripts.TORCH)
    subprocess.run(command, cwd=folder, env=environment, check=True, timeout=240)
    problems = Problems()
    return last_run(folder / "out", problems), problems, folder / "out"


def said(root: Path, *verb: str) -> str:
    """What a command says about a run."""
    command = probe_command(*verb, root, modules=user_scripts.TORCH)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False).stdout


@pytest.mark.parametrize("name", ["spawn", "fork", "two models"])
def test_runs_side_by_side_have_numbers_and_are_judged(name: str, tmp_path: Path) -> None:
    """Directories, manifests and findings have different numbers; the rows of each are read and judged; none is called
    an earlier run."""
    run, problems, root = watched(name, tmp_path)
    assert [directory.rank for directory in run.directories] == [0, 1]
    assert [f"-rank{rank}-" in run.directories[rank].path.name for rank in (0, 1)] == [True, True]
    assert [directory.manifest.rank for directory in run.directories] == [0, 1]
    assert len({directory.manifest.program for directory in run.directories}) == 1
    assert [line for line in problems.lines() if "earlier run" in line] == []
    with Rows(run.directories, Problems()) as rows:
        read = {rank: list(steps(rows, rank)) for rank in run.ranks}
        nans = {rank: any(each.op("nans").any() for step in read[rank] for each in step.batches) for rank in read}
    assert {rank: [step.step for step in read[rank]] for rank in read} == {0: [*range(6)], 1: [*range(6)]}
    assert sorted(nans.values()) == [False, True]
    (faulty,) = (rank for rank, found in nans.items() if found)
    assert f"step 4, rank {faulty}" in " ".join(said(root, "anomalies").split())


def test_runs_one_after_the_other_are_later_runs_of_the_same_number(tmp_path: Path) -> None:
    """A process that begins when the one before has ended has its number, and the last run is read."""
    run, problems, root = watched("one after the other", tmp_path)
    assert [directory.rank for directory in run.directories] == [0]
    assert all("-rank0-" in path.name for path in root.glob("*-rank*"))
    assert len([line for line in problems.lines() if "earlier run" in line]) == 1
