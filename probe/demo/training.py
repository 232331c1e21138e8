"""The training run of the demonstration: an ordinary loop, with the monitor attached to it."""

from __future__ import annotations

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
from probe.demo.model import Gpt
from probe.demo.text import standard_library
from probe.pytorch import TrainerMon

SETTLING = 16
"""Steps before anything may break: a rule must have seen what is usual."""
REMAINING = 3
"""Steps that follow the broken one at least."""
BATCH = 16
LEARNING_RATE = 1e-3
WARM_UP = 10
"""Steps in which the learning rate rises to its value."""


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
        "alert": {"rules": [{"rule_name": "AnomalyNan"}, {"rule_name": "AnomalySpike"}]},
    }


def run(plan: Plan, observe: Callable[[Progress], None]) -> Outcome:
    """Trains, breaks, watches; ``observe`` is told of every step."""
    torch.manual_seed(plan.seed)
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / WARM_UP))
    injection, fault = _break(model, plan)
    monitor = TrainerMon(configuration(plan.formats), params_have_main_grad=False)
    with _output(plan.output):
        monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizer)
    began = time.perf_counter()
    with monitor:
        for step, (tokens, targets) in enumerate(_batches(plan.steps, plan.seed)):
            if fault is not None:
                fault.step = step
            loss = functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            waited = _waited(monitor.cost) / (time.perf_counter() - began) * (step + 1)
            observe(Progress(step, loss.item(), waited, len(monitor.findings)))
        seconds = time.perf_counter() - began
    directory = Path(monitor.output_directory or plan.output)
    return Outcome(injection, monitor.findings, directory, seconds, monitor.cost, monitor.faults)


def _break(model: torch.nn.Module, plan: Plan) -> tuple[Injection | None, Fault | None]:
    if plan.fault == "none":
        return None, None
    injection = draw(plan.fault, model, (SETTLING, plan.steps - REMAINING), plan.seed)
    return injection, Fault(model, injection)


def _waited(cost: dict[str, float]) -> float:
    """Seconds a step for which training waited for the monitor."""
    return (cost.get("hooks", 0.0) + cost.get("drain", 0.0)) / max(cost.get("steps", 0.0), 1.0)


def _batches(steps: int, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Bytes at random places of the text, and the bytes that follow each."""
    text = torch.frombuffer(bytearray(standard_library()), dtype=torch.uint8).long()
    random = torch.Generator().manual_seed(seed)
    context = 128
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
