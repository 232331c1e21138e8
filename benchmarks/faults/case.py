"""A fault as a case: its source, the evidence that decides it, and what must be named. No framework is imported."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal, NamedTuple, get_args

Label = Literal["sentinel", "loop", "ranks", "rows", "before", "twin"]
"""Least evidence that decides a fault: the loss and the gradients' norms at every step; facts of the loop (identities,
modes, order of calls); numbers of other ranks; recorded rows (activations, updates); a check before training; a
reference run."""
LABELS: tuple[str, ...] = get_args(Label)

CONFIG = "FINDING_CONFIG"
"""Environment variable with the configuration of the mode ``full``; without it no case imports the monitor."""
STEPS = 160
"""Steps of a run, if its case has no other number."""
ONSET = STEPS // 2
"""Step from which on a fault acts that does not act from the beginning."""

NOT_FINITE = "loss-not-finite", "gradient-not-finite", "NaN", "overflow", "RunNan"
LEAP = "loss-leap", "gradient-leap", "turning-unstable", "spike", "exploding gradient", "RunSpike"
REPLICAS = "replicas-differ", "divergence of replicas"


@dataclass(frozen=True)
class Case:
    """Case of a fault. The script has a faulty and a healthy twin with the same seed."""

    sources: tuple[str, ...]
    """Links to public reports."""
    label: Label
    kinds: tuple[str, ...]
    """Kinds of findings that count as right."""
    start: int = 0
    """First step in which the fault acts."""
    where: tuple[str, ...] = ()
    """Patterns of the places of which one must be named; empty if the fault has no place."""
    ranks: tuple[int, ...] = ()
    """Ranks of which one must be named; empty if it is a matter of all, or cannot be decided."""
    world: int = 1
    """Number of processes."""
    steps: int = STEPS
    full: Mapping[str, Any] = field(default_factory=dict)
    """Keys that the mode ``full`` adds to its configuration, as the guides have them."""

    @property
    def family(self) -> str:
        """Report that the case comes from first: cases of one report are no independent evidence."""
        return self.sources[0]


class Run(NamedTuple):
    """Arguments of one run of a case."""

    faulty: bool
    seed: int
    steps: int


def arguments(case: Case) -> Run:
    """Parse the command line of a case."""
    parser = argparse.ArgumentParser(description="Train the faulty or the healthy twin of a case.")
    parser.add_argument("twin", choices=("healthy", "faulty"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=case.steps)
    args = parser.parse_args()
    return Run(args.twin == "faulty", args.seed, args.steps)


class Unwatched:
    """Monitor of a program that has none."""

    def log(self, **numbers: Any) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""


def watch(model: Any, optimizer: Any, accumulation: int = 1, framework: str = "pytorch", **groups: Any) -> Any:
    """Return the monitor of the three lines if a configuration is named, else one that does nothing."""
    path = os.environ.get(CONFIG)
    if not path:
        return Unwatched()
    monitor = import_module(f"probe.{framework}").TrainerMon(path)
    monitor.set_monitor(model, grad_acc_steps=accumulation, optimizer=optimizer, **groups)
    return monitor


def main(case: Case, train: Callable[[Run], None]) -> None:
    """Train as the command line asks."""
    train(arguments(case))
