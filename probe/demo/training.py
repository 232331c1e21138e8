"""Training run of the demonstration: an ordinary loop, with the monitor attached to it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from probe.core.monitor.trainer_mon import Monitor
from probe.core.records import Finding
from probe.core.rules.nan import AnomalyNan
from probe.core.rules.spike import AnomalySpike
from probe.demo import recipe
from probe.demo.faults import Fault, FaultPlaces, Injection, draw

REMAINING = 3
"""Least number of steps after the broken one."""
LOG = "probe.log"
"""File in the run's directory that gets the monitor's log."""


class DemoPlan(NamedTuple):
    """Options of a run."""

    framework: str
    seed: int
    fault: str | None
    """Kind of :data:`probe.demo.faults.KINDS`, ``none``, or None for any of the kinds."""
    steps: int
    output: Path
    """Directory that gets the run's own directory."""
    formats: Sequence[str]
    size: recipe.Size = recipe.Size()


class DemoProgress(NamedTuple):
    """Progress of a run."""

    step: int
    loss: float
    cost: float
    """Fraction of the time so far for which training waited for the monitor."""
    findings: int


class DemoOutcome(NamedTuple):
    """Result of a run."""

    injection: Injection | None
    findings: list[Finding]
    directory: Path
    """Directory of its files."""
    seconds: float
    """Duration of training."""
    cost: dict[str, float]
    faults: dict[str, int]
    """Faults inside the monitor."""


class Training(Protocol):
    """Small GPT and its optimizer, which know nothing of the monitor."""

    model: Any
    optimizer: Any

    def step(self, tokens: recipe.Bytes, targets: recipe.Bytes, log: Callable[..., None]) -> float:
        """Run one training step; pass its numbers to ``log``, and return the loss before its update."""


class DemoFramework(Protocol):
    """Framework of the demonstration: a package of ``probe.demo``."""

    @property
    def TrainerMon(self) -> type[Monitor]:  # noqa: N802 - it is a class
        """Monitor of the framework."""

    def begin(self, size: recipe.Size, seed: int) -> Training:
        """Begin a training run, as :mod:`probe.demo.recipe` defines it."""

    def places(self, model: Any) -> FaultPlaces:
        """Places where ``model`` can break."""

    def inject(self, model: Any, fault: Fault) -> None:
        """Make the fault a part of ``model``."""

    def few_threads(self) -> AbstractContextManager[None]:
        """Limit the framework to as few threads as are best for a small model on shared cores."""


def configuration(formats: Sequence[str]) -> dict[str, Any]:
    """Configuration that watches everything, with both rules."""
    return {
        "param_distribution": True,
        "wg_distribution": True,
        "mv_distribution": True,
        "xy_distribution": True,
        "all_xy": True,
        "ops": ["norm", "mean", "min", "max", "nans"],
        "format": list(formats),
        "step_count_per_record": 10,
        "squash_name": False,
        "alert": {"rules": [{"rule_name": AnomalyNan.__name__}, {"rule_name": AnomalySpike.__name__}], "dump": True},
    }


def run(plan: DemoPlan, observe: Callable[[DemoProgress], None]) -> DemoOutcome:
    """Train, inject the fault and monitor; call ``observe`` after every step."""
    framework = _framework(plan.framework)
    training = framework.begin(plan.size, plan.seed)
    fault = _break(framework, training.model, plan)
    monitor = framework.TrainerMon(configuration(plan.formats), params_have_main_grad=False)
    with _output(plan.output):
        monitor.set_monitor(training.model, grad_acc_steps=1, optimizer=training.optimizer)
    directory = Path(str(monitor.output_directory))
    with _log_in(directory / LOG), framework.few_threads():
        began = time.perf_counter()
        with monitor:
            for step, loss in enumerate(_train(training, fault, plan, monitor.log)):
                each = (time.perf_counter() - began) / (step + 1)
                observe(DemoProgress(step, loss, _waited(monitor.cost) / each, len(monitor.findings)))
        seconds = time.perf_counter() - began
    injection = fault.injection if fault else None
    return DemoOutcome(injection, monitor.findings, directory, seconds, monitor.cost, monitor.faults)


def _framework(name: str) -> DemoFramework:
    if name == "mindspore":
        from probe.demo import mindspore

        return mindspore
    from probe.demo import pytorch

    return pytorch


def _train(training: Training, fault: Fault | None, plan: DemoPlan, log: Callable[..., None]) -> Iterator[float]:
    """Yield the loss of each step."""
    for step, (tokens, targets) in enumerate(recipe.batches(plan.steps, plan.size.context, plan.seed)):
        if fault is not None:
            fault.step = step
        yield training.step(tokens, targets, log)


def _break(framework: DemoFramework, model: Any, plan: DemoPlan) -> Fault | None:
    if plan.fault == "none":
        return None
    steps = (recipe.WARM_UP, plan.steps - REMAINING)
    fault = Fault(draw(plan.fault, framework.places(model), steps, plan.seed))
    framework.inject(model, fault)
    return fault


def _waited(cost: dict[str, float]) -> float:
    """Seconds a step for which training waited for the monitor."""
    return (cost.get("hooks", 0.0) + cost.get("drain", 0.0)) / max(cost.get("steps", 0.0), 1.0)


@contextmanager
def _output(directory: Path) -> Iterator[None]:
    """Make monitors write to ``directory``."""
    before = os.environ.get("MONITOR_OUTPUT_DIR")
    os.environ["MONITOR_OUTPUT_DIR"] = str(directory)
    try:
        yield
    finally:
        if before is None:
            del os.environ["MONITOR_OUTPUT_DIR"]
        else:
            os.environ["MONITOR_OUTPUT_DIR"] = before


@contextmanager
def _log_in(path: Path) -> Iterator[None]:
    """Send the monitor's log to a file, since the terminal shows the progress of the run."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logger = logging.getLogger("probe")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()
