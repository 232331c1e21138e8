"""Runs of the cases with other tools: an environment for each tool, and what its runs have left."""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import _beside_traincheck
from _beside_recordings import numbers_of
from _finding_runs import HERE, Program, programs_of_case
from case import Case

TORCH = "torch==2.13.0"
"""Framework of an environment that has none under it, with the packages that cases import."""
PACKAGES = "numpy<2", "transformers", "accelerate"
WATCH = HERE / "_beside_watch.py"
SILENT = "the program logs no loss"


class OtherTool(NamedTuple):
    """Another tool."""

    name: str
    requirement: str
    """Package of the index."""


TOOLS = {
    tool.name: tool
    for tool in (
        OtherTool("trainscope", "trainscope==1.8.1"),
        OtherTool("msprobe", "mindstudio-probe==26.2.0"),
        OtherTool("traincheck", "traincheck==0.2.0"),
    )
}


class Environment(NamedTuple):
    """Virtual environment of a tool."""

    python: Path
    problem: str
    """Reason why the tool could not be installed; empty if it was."""


class Twin(NamedTuple):
    """Run of a twin with a tool."""

    findings: list[dict[str, Any]]
    numbers: list[dict[str, list[float]]]
    """Losses and norms of gradients of each rank."""
    error: str
    """Reason why the tool has judged nothing; empty if it has."""

    def series(self, name: str) -> list[list[float]]:
        """Return a number of each rank that has it, over the steps."""
        return [row[name] for row in self.numbers if any(not math.isnan(value) for value in row[name])]


def environment(tool: OtherTool, cache: Path, over: bool) -> Environment:
    """Make the environment of a tool, unless it is there.

    Args:
        over: True if it lies over the packages of the running interpreter.
    """
    folder = cache / f"env-{tool.name}"
    python, answer = folder / "bin" / "python", folder / "installed.txt"
    if not answer.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        if over:
            (site,) = folder.glob("lib/python*/site-packages")
            (site / "under.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
        wanted = [tool.requirement] if over else [tool.requirement, TORCH, *PACKAGES]
        command = [str(python), "-m", "pip", "install", "--quiet", *wanted]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip failed"]
        answer.write_text(lines[-1] if done.returncode else "", encoding="utf-8")
    return Environment(python, answer.read_text(encoding="utf-8"))


def run_twins(
    tool: OtherTool, place: Environment, cache: Path, known: Mapping[str, Case], args: argparse.Namespace
) -> dict[str, Twin]:
    """Run both twins of each case with a tool; return them by the names of their runs."""
    folder = cache / "runs" / tool.name
    wanted = [row for name, case in known.items() for seed in args.seeds for row in programs_of_case(name, case, seed)]
    if place.problem:
        return {program.key: Twin([], [], f"cannot be installed: {place.problem}") for program in wanted}
    if args.recordings and tool.name == "trainscope":
        return _recorded(place.python, cache, wanted, args.recordings.resolve())
    if tool.name == "traincheck":
        return {key: Twin(*rest) for key, rest in _beside_traincheck.twins(place.python, folder, wanted, args).items()}
    if not args.again:
        folder.mkdir(parents=True, exist_ok=True)
        missing = [program._replace(steps=args.steps) for program in wanted if not _files(folder, program)]
        _run(tool, place.python, missing, folder, args.limit)
    return {program.key: _twin(folder, program) for program in wanted}


def _recorded(python: Path, cache: Path, programs: list[Program], recordings: Path) -> dict[str, Twin]:
    """Judge recorded losses by the default detector of trainscope."""
    numbers = {program.key: numbers_of(recordings / program.key) for program in programs}
    places = [(key, rank) for key, ranks in numbers.items() for rank in range(len(ranks))]
    results = spikes_of(python, cache, [{"losses": numbers[key][rank]["losses"]} for key, rank in places])
    findings: dict[str, list[dict[str, Any]]] = {program.key: [] for program in programs}
    for (key, rank), spikes in zip(places, results, strict=True):
        facts = {"grade": "warning", "kind": "spike", "where": None, "rank": rank}
        findings[key] += [facts | {"step": step, "score": score} for step, score in spikes]
    return {
        key: Twin(findings[key], ranks, "" if any(any(map(math.isfinite, row["losses"])) for row in ranks) else SILENT)
        for key, ranks in numbers.items()
    }


def spikes_of(python: Path, folder: Path, series: list[dict[str, Any]]) -> list[list[tuple[int, float]]]:
    """Return the steps and scores of the spikes that trainscope sees in series of losses."""
    file = folder / "losses.json"
    file.write_text(json.dumps(series), encoding="utf-8")
    command = [str(python), str(WATCH), "trainscope", "--losses", str(file)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=variables())
    answer: list[list[tuple[int, float]]] = json.loads(done.stdout)
    return answer


def _run(tool: OtherTool, python: Path, programs: list[Program], folder: Path, limit: float) -> None:
    """Run programs of one process as forks of one, and those of several by a launcher."""
    jobs = []
    for program in programs:
        place = folder / program.key
        place.mkdir(parents=True, exist_ok=True)
        script, *arguments = program.arguments
        if program.world == 1:
            jobs.append({"folder": str(place), "script": script, "arguments": arguments, "limit": limit})
            continue
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(program.world)]
        command = [str(python), *launcher, str(WATCH), tool.name, str(place), script, *arguments]
        with (place / "log.txt").open("w", encoding="utf-8") as log:
            try:
                subprocess.run(command, check=False, stdout=log, stderr=log, env=variables(), cwd=place, timeout=limit)
            except subprocess.TimeoutExpired:
                log.write(f"took more than {limit:g} s\n")
        print(place, flush=True)
    if jobs:
        file = folder / "jobs.json"
        file.write_text(json.dumps(jobs), encoding="utf-8")
        command = [str(python), str(WATCH), tool.name, "--jobs", str(file)]
        subprocess.run(command, check=False, env=variables(), cwd=folder)


def variables() -> dict[str, str]:
    """Return the environment variables of a run: our own package is not on its path."""
    left_out = "PYTHONPATH", "FINDING_CONFIG"
    return {name: text for name, text in os.environ.items() if name not in left_out} | {"OMP_NUM_THREADS": "1"}


def _files(folder: Path, program: Program) -> list[Path]:
    return sorted((folder / program.key).glob("rank-*.json"))


def _twin(folder: Path, program: Program) -> Twin:
    """Read what a run has left."""
    ranks = [json.loads(file.read_text(encoding="utf-8")) for file in _files(folder, program)]
    if len(ranks) < program.world:
        return Twin([], [], "the run has ended without results, or took too long")
    findings = sorted((entry for rank in ranks for entry in rank["findings"]), key=lambda entry: entry["step"])
    numbers = [{name: rank[name] for name in ("losses", "norms")} for rank in ranks]
    return Twin(findings, numbers, next((rank["error"] for rank in ranks if rank["error"]), ""))
