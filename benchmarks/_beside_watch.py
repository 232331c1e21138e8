"""Cases of the benchmark of finding power with another tool in place of ours. ``beside.py`` runs them with that tool's
interpreter:

    python _beside_watch.py TOOL FOLDER SCRIPT ARGUMENTS ...
    python _beside_watch.py TOOL --jobs FILE
    python _beside_watch.py trainscope --losses FILE

``FOLDER/rank-N.json`` gets the losses and norms of gradients that the program logged, and the tool's findings. Each of
several jobs has a process of its own, a fork of one that has imported the packages. With ``--losses`` the detector of
trainscope judges series of losses, as ``TrainScope.step`` has it do: the first number of each finding is the step.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import runpy
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "faults"), str(HERE)]
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
ALERTS = [
    {"rule_name": "AnomalyTurbulence", "args": {"threshold": 0.5}},
    {"rule_name": "AnomalyNan"},
]
"""Rules of msprobe, with the threshold of its documentation."""


class Tool(Protocol):
    """Another tool at one training run."""

    def step(self, loss: float) -> None:
        """Take the loss of a step."""

    def findings(self) -> list[dict[str, Any]]:
        """Return what it has found, at the end."""


class TrainScope:
    """``trainscope`` with its default settings, called once a step as its documentation has it."""

    def __init__(self, folder: Path, model: Any, optimizer: Any) -> None:
        package, config = import_module("trainscope"), import_module("trainscope.core.config")
        name = "run" if WORLD == 1 else f"run-{RANK}"
        self._folder = folder / name
        settings = config.TrainScopeConfig(run_dir=str(folder), run_name=name)
        self._scope = package.TrainScope(model, optimizer, config=settings).attach()
        self._losses: list[float] = []
        self._spikes: list[dict[str, Any]] = []

    def step(self, loss: float) -> None:
        """Take the loss, while the gradients of the step are there."""
        spike = self._scope.step(loss)
        if not math.isfinite(loss):  # it writes a warning, and its detector does not see the number
            self._spikes.append(entry("non-finite loss", len(self._losses), score=math.inf))
        self._losses.append(loss)
        if spike:
            self._spikes.append(entry("spike", spike["step"], score=spike["spike_score"]))

    def findings(self) -> list[dict[str, Any]]:
        """Return its spikes, and the signals of its report after the run."""
        self._scope.detach()
        signature = asyncio.run(import_module("trainscope.analysis").run_signal_signature(self._folder))
        steps = signature["first_steps"].items()
        return self._spikes + [entry(f"report: {name}", step) for name, step in steps if name != "loss"]


class Msprobe:
    """Monitor of ``mindstudio-probe`` with its two rules, watching all that it can."""

    def __init__(self, folder: Path, model: Any, optimizer: Any) -> None:
        self._folder = folder / "msprobe"
        os.environ["MONITOR_OUTPUT_DIR"] = str(self._folder)
        config = folder / f"msprobe-{RANK}.json"
        watched = dict.fromkeys(("wg_distribution", "xy_distribution", "all_xy", "param_distribution"), True)
        settings = {"targets": {}, "ops": ["min", "max", "mean", "norm", "nans"], "format": "csv", **watched}
        config.write_text(json.dumps(settings | {"alert": {"rules": ALERTS, "dump": True}}), encoding="utf-8")
        monitor = import_module("msprobe.pytorch").TrainerMon(str(config), params_have_main_grad=False)
        monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizer)

    def step(self, loss: float) -> None:
        """Do nothing: it listens to the optimizer."""

    def findings(self) -> list[dict[str, Any]]:
        """Return the anomalies that it has written."""
        entries = []
        for file in self._folder.rglob("anomaly.json"):
            for anomaly in json.loads(file.read_text(encoding="utf-8")).values():
                kind = re.search(r"Anomaly\w+", anomaly["message"])
                where = str(anomaly["tag_name"]).removeprefix("0:").partition("/")[0]
                entries.append(entry(kind[0] if kind else "anomaly", int(anomaly["step"]), where))
        return sorted(entries, key=lambda each: each["step"])


TOOLS = {"trainscope": TrainScope, "msprobe": Msprobe}
PACKAGES = {"trainscope": ("trainscope", "trainscope.analysis"), "msprobe": ("msprobe.pytorch",)}
"""Packages that are imported once for all jobs."""


def entry(kind: str, step: int, where: str | None = None, **more: Any) -> dict[str, Any]:
    """Return a finding as ours are listed."""
    return {"grade": "warning", "kind": kind, "where": where, "rank": RANK, "step": step, **more}


class Watch:
    """Monitor of a case, which passes on what the case logs."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name, self._folder = name, folder
        self._tool: Tool | None = None
        self._optimizer: Any = None
        self.losses: list[float] = []
        self.norms: list[float] = []
        self.error = "the program calls no monitor"

    def __call__(self, model: Any, optimizer: Any, accumulation: int = 1, **more: Any) -> Watch:  # noqa: ARG002
        """Attach the tool, as the case attaches ours."""
        self._optimizer, self.error = optimizer, ""
        if more.get("framework", "pytorch") != "pytorch":
            self.error = "it watches programs of PyTorch only"
        elif self._name in TOOLS:
            try:
                self._tool = TOOLS[self._name](self._folder, model, optimizer)
            except Exception as error:  # noqa: BLE001 - any reason why it cannot be used is a result
                self.error = f"cannot be attached: {error!r}"
        return self

    def log(self, loss: Any, grad_norm: Any = None, **_: Any) -> None:
        """Take the numbers of a step."""
        self.losses.append(_number(loss))
        self.norms.append(_norm(self._optimizer) if grad_norm is None else _number(grad_norm))
        if self._tool is not None:
            self._tool.step(self.losses[-1])

    def stop(self) -> None:
        """Do nothing: the results are written after the program."""

    def write(self, failure: str) -> None:
        """Write the results."""
        findings: list[dict[str, Any]] = []
        try:
            findings = self._tool.findings() if self._tool else []
        except Exception as error:  # noqa: BLE001 - as above
            failure = failure or f"no results: {error!r}"
        results = {"losses": self.losses, "norms": self.norms, "findings": findings, "error": self.error or failure}
        (self._folder / f"rank-{RANK}.json").write_text(json.dumps(results), encoding="utf-8")


def _norm(optimizer: Any) -> float:
    """Return the norm of all gradients that an optimizer of PyTorch holds; NaN of any other."""
    groups = getattr(optimizer, "param_groups", None)
    if groups is None or not hasattr(groups, "__iter__"):
        return float("nan")
    gradients = [parameter.grad for group in groups for parameter in group["params"]]
    squares = [float(gradient.double().square().sum()) for gradient in gradients if gradient is not None]
    return sum(squares) ** 0.5


def _number(value: Any) -> float:
    """Return a number, or that of a tensor of one element."""
    return float(value.detach() if hasattr(value, "detach") else value)


def run(tool: str, folder: str, script: str, arguments: list[str]) -> None:
    """Run a case."""
    import case

    watch = Watch(tool, Path(folder))
    case.watch = watch  # before the program imports it by name
    sys.argv = [script, *arguments]
    failure = ""
    try:
        runpy.run_path(script, run_name="__main__")
    except Exception as error:
        failure = f"the program failed: {error!r}"
        raise
    finally:
        watch.write(failure)


def run_forked(tool: str, folder: str, script: str, arguments: list[str], limit: float) -> None:
    """Run a case in a fork, which is killed after ``limit`` seconds."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(math.ceil(limit))  # the default of SIGALRM ends the process
            sys.stdout = sys.stderr = (Path(folder) / "log.txt").open("w", encoding="utf-8")
            run(tool, folder, script, arguments)
            code = 0
        finally:
            os._exit(code)
    os.waitpid(child, 0)


def spikes(losses: list[float], **settings: float) -> list[tuple[int, float]]:
    """Return the steps and scores at which trainscope reports a spike by its default detector, or warns of a loss that
    is not finite, with an infinite score."""
    detector = import_module("trainscope.core.detectors.changepoint").ChangePointDetector(**settings)
    scores = [(step, detector.update(loss) if math.isfinite(loss) else math.inf) for step, loss in enumerate(losses)]
    return [(step, score) for step, score in scores if score is not None]


def main() -> None:
    """Run what the command line asks for."""
    tool, first, *rest = sys.argv[1:]
    if first == "--losses":
        jobs = json.loads(Path(rest[0]).read_text(encoding="utf-8"))
        print(json.dumps([spikes(job["losses"], **job.get("settings", {})) for job in jobs]))
        return
    if first != "--jobs":
        run(tool, first, rest[0], rest[1:])
        return
    for name in ("torch", *PACKAGES.get(tool, ())):
        import_module(name)
    for job in json.loads(Path(rest[0]).read_text(encoding="utf-8")):
        run_forked(tool, **job)
        print(job["folder"], flush=True)


if __name__ == "__main__":
    main()
