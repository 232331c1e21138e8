"""Programs of the benchmark of finding power: their discovery, a process for each, and what was found in its files."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

import _finding  # noqa: F401 - the cases are on the path from then on
from case import CONFIG, Case

HERE = Path(__file__).resolve().parent
FAULTS, HEALTHY = HERE / "faults", HERE / "healthy"
SHARED = ("case", "common", "tensor_parallel", "data")
"""Modules in these folders that are no programs."""

FULL: dict[str, Any] = {
    "wg_distribution": True,
    "monitor_mbs_grad": True,
    "xy_distribution": True,
    "all_xy": True,
    "param_distribution": True,
    "mv_distribution": True,
    "ur_distribution": True,
    "ops": ["min", "max", "mean", "norm", "zeros", "nans", "infs", "std"],
    "run": {"enable": True},
    "sentinel": {"enable": True},
}
"""Configuration with everything switched on."""
OF_RANKS: dict[str, Any] = {"global_stats": True, "cc_distribution": {"enable": True}}
"""Keys that are added for several processes."""

Mode = Literal["run", "full", "check"]


class Program(NamedTuple):
    """Program to run, with its arguments."""

    name: str
    script: Path
    twin: Literal["faulty", "healthy", ""]
    """Twin of a case; empty for a healthy program."""
    seed: int
    steps: int | None
    """Steps; None for those of the case."""
    world: int
    full: dict[str, Any]
    """Additions to the configuration with everything switched on."""

    @property
    def key(self) -> str:
        """Name of the run."""
        return "-".join(filter(None, (self.name, self.twin, str(self.seed))))

    @property
    def arguments(self) -> list[str]:
        """Script and arguments."""
        steps = [] if self.steps is None else ["--steps", str(self.steps)]
        return [str(self.script), *filter(None, [self.twin]), "--seed", str(self.seed), *steps]


class Outcome(NamedTuple):
    """Outcome of a run."""

    key: str
    seconds: float
    findings: list[dict[str, Any]]
    judged: dict[str, Any]
    """Ranks, steps and rows that were judged."""
    error: str
    """Reason why nothing is known; empty if it ran and was judged."""


def cases() -> dict[str, Case]:
    """Return the cases by name."""
    names = sorted(path.stem for path in FAULTS.glob("*.py") if path.stem not in SHARED)
    return {name: importlib.import_module(name).CASE for name in names}


def healthy_programs() -> dict[str, Path]:
    """Return the healthy programs by name."""
    return {path.stem: path for path in sorted(HEALTHY.glob("*.py")) if path.stem not in SHARED}


def constant(script: Path, name: str, default: Any) -> Any:
    """Return a constant of a program, which is not imported."""
    for node in ast.parse(script.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Name) and target.id == name:
            return ast.literal_eval(node.value)
    return default


def missing_packages(script: Path) -> list[str]:
    """Return the packages that a program imports and that are not installed."""
    nodes = list(ast.walk(ast.parse(script.read_text(encoding="utf-8"))))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    roots = {name.partition(".")[0] for name in names} - {*SHARED, "__future__"}
    return sorted(root for root in roots if find_spec(root) is None)


def programs_of_case(name: str, case: Case, seed: int) -> Iterator[Program]:
    """Yield both twins of a case."""
    for twin in ("faulty", "healthy"):
        yield Program(name, FAULTS / f"{name}.py", twin, seed, None, case.world, dict(case.full))


def healthy_program(name: str, script: Path, seed: int, steps: int) -> Program:
    """Return a healthy program."""
    return Program(name, script, "", seed, steps, constant(script, "WORLD", 1), {})


def command_of(program: Program, mode: Mode, config: Path) -> list[str]:
    """Return the command that trains and is watched.

    Cases write the three lines themselves in the mode ``full``; healthy programs are left as they are.
    """
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(program.world)]
    alone = [sys.executable, *(torchrun if program.world > 1 else []), *program.arguments]
    if mode == "full" and program.twin:
        return alone
    watched = program.arguments if program.world == 1 else ["--", *alone]
    if mode == "check":
        return [sys.executable, "-m", "probe", "check", "--json", *watched]
    options = [] if mode == "run" else ["--config", str(config)]
    return [sys.executable, "-m", "probe", "run", *options, *watched]


def train(program: Program, mode: Mode, folder: Path, limit: float) -> Outcome:
    """Train a program in ``folder``, which gets its files."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "config.json"
    config.write_text(json.dumps(FULL | (OF_RANKS if program.world > 1 else {}) | program.full), encoding="utf-8")
    began = time.monotonic()
    with (folder / "log.txt").open("w", encoding="utf-8") as log:
        variables = _variables(folder) | ({CONFIG: str(config)} if mode == "full" and program.twin else {})
        with ExitStack() as files:
            printed = files.enter_context((folder / ANSWER).open("w", encoding="utf-8")) if mode == "check" else log
            code = _waited(command_of(program, mode, config), printed, log, variables, folder, limit)
    seconds = time.monotonic() - began
    if mode == "check" and code == 1:  # a warning
        code = 0
    if code:
        reason = f"took more than {limit:g} s" if code == TIMED_OUT else f"exit code {code}"
        return Outcome(program.key, seconds, [], {}, f"{reason}: {_last_error(folder / 'log.txt')}")
    return judged(program, mode, folder, seconds)


def _last_error(log: Path) -> str:
    """Return the last line that names an error, else the last line."""
    lines = list(filter(None, log.read_text(encoding="utf-8", errors="replace").splitlines()))
    return next((text for text in reversed(lines) if ERROR.match(text)), lines[-1] if lines else "")


ANSWER = "check.json"
"""File with what ``probe check --json`` has printed."""
TIMED_OUT = 124
GRACE = 20.0
"""Seconds from a signal to end until a process is killed."""
ERROR = re.compile(r"(\[rank\d+\]: )?[\w.]+Error: ")


def _variables(folder: Path) -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(HERE.parent), os.environ.get("PYTHONPATH", ""))))
    more = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MONITOR_OUTPUT_DIR": str(folder / "files")}
    return {name: text for name, text in os.environ.items() if name != CONFIG} | more


def _waited(command: list[str], printed: Any, log: Any, variables: dict[str, str], folder: Path, limit: float) -> int:
    """Run a command in a process group of its own, which is ended at the limit; return its exit code."""
    process = subprocess.Popen(command, stdout=printed, stderr=log, env=variables, cwd=folder, start_new_session=True)
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)  # torchrun ends its ranks, which have process groups of their own
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return TIMED_OUT


def judged(program: Program, mode: Mode, folder: Path, seconds: float) -> Outcome:
    """Return the findings of a recorded run, or of a trial.

    A faulty run in which nothing could be judged has none; a healthy one has failed, as silence would prove nothing.
    """
    if mode == "check":
        printed, errors = (folder / ANSWER).read_text(encoding="utf-8"), ""
    else:
        command = [sys.executable, "-m", "probe", "anomalies", str(folder / "files"), "--json"]
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=_variables(folder), cwd=folder)
        printed, errors = done.stdout, done.stderr
    try:
        answer = json.loads(printed)
    except ValueError:  # there are no files, or they have nothing that can be judged
        answer = {"findings": [], "judged": {}}
    try:
        findings, extent = [{name: entry[name] for name in FIELDS} for entry in answer["findings"]], answer["judged"]
    except (KeyError, TypeError) as error:
        return Outcome(program.key, seconds, [], {}, f"expected fields {', '.join(FIELDS)} of each finding; {error!r}")
    nothing = not findings and not extent.get("rows")
    error = f"nothing was judged: {errors.strip()[-300:]}" if nothing and program.twin != "faulty" else ""
    return Outcome(program.key, seconds, findings, extent, error)


FIELDS = "grade", "kind", "where", "rank", "step"
"""Fields that each finding must have."""
