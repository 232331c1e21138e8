"""The training run of the demonstration: an ordinary loop, with the monitor attached to it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from probe.core.records import Finding
from probe.demo.faults import Fault, Injection, draw
from probe.demo.model import Gpt, Size
from probe.demo.text import standard_library
from probe.pytorch import TrainerMon

REMAINING = 3
"""Steps that follow the broken one at least."""
BATCH = 16
LEARNING_RATE = 1e-3
WARM_UP = 20
"""Steps in which the learning rate rises to its value, and before which nothing breaks."""
LOG = "probe.log"
"""File in the run's directory that gets what the monitor logs."""


class Plan(NamedTuple):
    """What to run."""

    seed: int
    fault: str | None
    """A kind of :data:`probe.demo.faults.KINDS`, ``none``, or None for any of the kinds."""
    steps: int
    output: Path
    """Directory that gets the run's own directory."""
    formats: Sequence[str]


class Progress(NamedTuple):
    """Where the run is."""

    step: int
    loss: float
    cost: float
    """Fraction of the time so far for which training waited for the monitor."""
    findings: int


class Outcome(NamedTuple):
    """What a run gave."""

    injection: Injection | None
    findings: list[Finding]
    directory: Path
    """Where its files are."""
    seconds: float
    """Duration of training."""
    cost: dict[str, float]
    faults: dict[str, int]
    """What failed inside the monitor."""


def configuration(formats: Sequence[str]) -> dict[str, Any]:
    """Everything watched, both rules on."""
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
        "alert": {"rules": [{"rule_name": "AnomalyNan"}, {"rule_name": "AnomalySpike"}], "dump": True},
    }


def run(plan: Plan, observe: Callable[[Progress], None]) -> Outcome:
    """Trains, breaks, watches; ``observe`` is told of every step."""
    torch.manual_seed(plan.seed)
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    injection, fault = _break(model, plan)
    monitor = TrainerMon(configuration(plan.formats), params_have_main_grad=False)
    with _output(plan.output):
        monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizer)
    directory = Path(str(monitor.output_directory))
    with _log_in(directory / LOG), _one_thread():
        began = time.perf_counter()
        with monitor:
            for step, loss in enumerate(_train(model, optimizer, fault, plan)):
                each = (time.perf_counter() - began) / (step + 1)
                observe(Progress(step, loss, _waited(monitor.cost) / each, len(monitor.findings)))
        seconds = time.perf_counter() - began
    return Outcome(injection, monitor.findings, directory, seconds, monitor.cost, monitor.faults)


def _train(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, fault: Fault | None, plan: Plan
) -> Iterator[float]:
    """The loss of each step. Nothing in this loop knows of the monitor."""
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / WARM_UP))
    for step, (tokens, targets) in enumerate(_batches(plan.steps, plan.seed)):
        if fault is not None:
            fault.step = step
        loss = functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        yield loss.item()


def _break(model: torch.nn.Module, plan: Plan) -> tuple[Injection | None, Fault | None]:
    if plan.fault == "none":
        return None, None
    injection = draw(plan.fault, model, (WARM_UP, plan.steps - REMAINING), plan.seed)
    return injection, Fault(model, injection)


def _waited(cost: dict[str, float]) -> float:
    """Seconds a step for which training waited for the monitor."""
    return (cost.get("hooks", 0.0) + cost.get("drain", 0.0)) / max(cost.get("steps", 0.0), 1.0)


def _batches(steps: int, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Bytes at random places of the text, and the bytes that follow each."""
    text = torch.frombuffer(bytearray(standard_library()), dtype=torch.uint8).long()
    random = torch.Generator().manual_seed(seed)
    context = Size().context
    for _ in range(steps):
        starts = torch.randint(len(text) - context, (BATCH,), generator=random).tolist()
        pieces = torch.stack([text[start : start + context + 1] for start in starts])
        yield pieces[:, :-1], pieces[:, 1:]


@contextmanager
def _output(directory: Path) -> Iterator[None]:
    """Has monitors write to ``directory``."""
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
    """Sends what the monitor logs to a file: the terminal has the line that shows how far the run is."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logger = logging.getLogger("probe")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Has torch compute with one thread: on shared cores, threads that wait for each other take a small model ten times
    as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
