"""Runs of the cases with TrainCheck: it infers invariants from a healthy run, and checks other runs by them."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _finding_runs import FAULTS, Program

Outcome = tuple[list[dict[str, Any]], list[dict[str, list[float]]], str]
"""Findings, no numbers, and the reason why nothing was judged."""
OTHER_SEED = 1_000
"""Seed of the reference, a healthy run as the twin: a run that is checked by its own invariants keeps all."""
SHARED = "case.py", "common.py", "tensor_parallel.py"
UNSUPPORTED = "from __future__ "
"""Line of the cases that is left out of a copy: what TrainCheck writes in front of it makes it a syntax error."""


def twins(python: Path, folder: Path, programs: Sequence[Program], args: argparse.Namespace) -> dict[str, Outcome]:
    """Return the outcome of each program: invariants come from a healthy run of its case with another seed."""
    outcomes: dict[str, Outcome] = {}
    for program in programs:
        place = folder / program.key
        answer = place / "outcome.json"
        if not answer.exists() and not args.again:
            place.mkdir(parents=True, exist_ok=True)
            answer.write_text(json.dumps(_checked(python, folder, program, args)), encoding="utf-8")
            print(place, flush=True)
        if answer.exists():
            findings, error = json.loads(answer.read_text(encoding="utf-8"))
            outcomes[program.key] = findings, [], error
    return outcomes


def _checked(python: Path, folder: Path, program: Program, args: argparse.Namespace) -> tuple[list[Any], str]:
    """Check a program; return the findings, and the reason if there are none."""
    if program.world > 1:
        return [], "it runs one process alone"
    place, reference = folder / program.key, folder / f"{program.name}-reference"
    tool = _Commands(python, args.limit, args.steps)
    try:
        if not (reference / "invariants.json").exists():
            reference.mkdir(parents=True, exist_ok=True)
            healthy = program._replace(twin="healthy", seed=program.seed + OTHER_SEED)
            tool.collect(healthy, reference)
            tool.run("infer", reference, "-f", "trace", "-o", "invariants.json")
        tool.collect(program, place, "--invariants", str(reference / "invariants.json"))
        tool.run("check", place, "-f", "trace", "-i", str(reference / "invariants.json"), "-o", "results")
    except subprocess.TimeoutExpired as error:
        return [], f"{Path(error.cmd[0]).name} took more than {args.limit:g} s"
    except subprocess.CalledProcessError as error:
        return [], f"{Path(error.cmd[0]).name} failed: {_last_line(error.output)}"
    return [entry for file in (place / "results").rglob("failed*.log") for entry in _violations(file)], ""


class _Commands:
    """Commands of TrainCheck in its environment."""

    def __init__(self, python: Path, limit: float, steps: int | None) -> None:
        self._bin, self._limit, self._steps = python.parent, limit, steps

    def run(self, name: str, place: Path, *arguments: str) -> None:
        """Run a command in a folder."""
        path = f"{self._bin}{os.pathsep}{os.environ.get('PATH', '')}"
        variables = os.environ | {"PYTHONPATH": str(FAULTS), "PATH": path, "OMP_NUM_THREADS": "1"}
        command = [str(self._bin / f"traincheck-{name}"), *arguments]
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, cwd=place, env=variables, timeout=self._limit
        )
        if done.returncode:
            raise subprocess.CalledProcessError(done.returncode, command, done.stderr + done.stdout)

    def collect(self, program: Program, place: Path, *more: str) -> None:
        """Trace a copy of the script, beside copies of what it imports: it is run in a path of its own."""
        for name in SHARED:
            shutil.copy(FAULTS / name, place / name)
        lines = program.script.read_text(encoding="utf-8").splitlines(keepends=True)
        copy = place / program.script.name
        copy.write_text("".join(line for line in lines if not line.startswith(UNSUPPORTED)), encoding="utf-8")
        steps = [] if self._steps is None else ["--steps", str(self._steps)]
        words = ["python", copy.name, program.twin, "--seed", str(program.seed), *steps]
        (place / "run.sh").write_text(f"#!/bin/bash\n{shlex.join(words)}\n", encoding="utf-8")
        common = ["--pyscript", copy.name, "--shscript", "run.sh", "--models-to-track", "model"]
        self.run("collect", place, *common, "--output-dir", "trace", *more)


def _last_line(text: str) -> str:
    """Return the last line that is not empty."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no output")[-200:]


def _violations(file: Path) -> list[dict[str, Any]]:
    """Return the violations of a file of results, in the order of steps."""
    text, decoder, entries = file.read_text(encoding="utf-8").strip(), json.JSONDecoder(), []
    while text:
        record, end = decoder.raw_decode(text)
        text = text[end:].lstrip()
        about = {"grade": "warning", "kind": "invariant", "where": None, "rank": 0}
        entries.append(about | {"step": min(_steps(record["trace"]), default=-1)})
    return sorted(entries, key=lambda entry: entry["step"])


def _steps(record: Any) -> list[int]:
    """Return the numbers of steps in a record."""
    if isinstance(record, dict):
        own = [int(value) for name, value in record.items() if name.endswith("step") and isinstance(value, int)]
        return own + [step for value in record.values() for step in _steps(value)]
    if isinstance(record, list):
        return [step for value in record for step in _steps(value)]
    return []
