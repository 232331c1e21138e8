"""Divergence that is not planted in a step: how many steps before it a warning begins that stays open.

    python benchmarks/divergence.py [--seeds 0 1 2] [--trainscope PYTHON] [--json FILE]

Four kinds of faulty recipes of a small decoder without norms, each with a healthy twin: a rate that is too high, one
that is too high from the first step on, bfloat16 with a wrong epsilon, and batches of noise. A run has diverged in the
first step in which the mean of the last 5 losses is twice its minimum so far, or a loss is not finite.

*Lead*: steps from the first alarm of a chain to the divergence, where each alarm follows the one before within 20 steps
and the last one comes at most so many before the divergence. An alarm counts from the step in which it could be given.
Ours are findings of ``probe run`` without a configuration. Other detectors see the losses (and the norms of gradients)
of the same runs, with limits at which no more healthy twins have an alarm than with our checks; of trainscope falls of
the loss are left out, since every healthy loss falls. Those limits come from the very twins: that favours the others.

``--trainscope`` is the interpreter of an environment with trainscope, such as ``beside.py`` makes.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import _finding  # noqa: F401 - the cases are on the path from then on
import torch
from _beside_runs import spikes_of
from _beside_scores import z_scores
from _finding import counted
from _report import publish, table
from _watched_training import attach, findings_of
from common import GPT, VOCABULARY, generator, text, text_loss
from torch import nn

STEPS, SMOOTHED, TIMES, OPEN = 240, 5, 2.0, 20
"""Steps of a run; losses that are averaged; rise that is a divergence; steps between two alarms of a chain."""
NOISE_FROM, NOISE_EVERY = 80, 4
THRESHOLDS = (6.0, 9.0, 12.0, 18.0, 24.0, 36.0, 48.0, 72.0, 96.0, 144.0)
"""Thresholds of trainscope, from its default on, of which the first is taken that is as quiet as ours."""


class Recipe(NamedTuple):
    """Recipe of a run."""

    rate: float = 1e-2
    warm_up: int = 30
    epsilon: float = 1e-8
    is_half: bool = False
    has_noise: bool = False


KINDS: Mapping[str, tuple[Recipe, Recipe]] = {
    "rate too high": (Recipe(0.1, 200), Recipe()),
    "no warm-up": (Recipe(0.1, 1), Recipe(warm_up=60)),
    "bfloat16, wrong epsilon": (Recipe(0.08, 150, 1e-30, True), Recipe(is_half=True)),
    "toxic batches": (Recipe(0.08, 200, has_noise=True), Recipe(0.02, 200)),
}
"""Faulty and healthy recipe of each kind."""


class Run(NamedTuple):
    """Run with its numbers."""

    losses: list[float]
    norms: list[float]
    findings: list[tuple[str, int]]
    """Kinds and steps of our findings that count."""

    @property
    def alarms(self) -> list[int]:
        """Steps of our findings."""
        return [step for _, step in self.findings]

    @property
    def checks(self) -> list[int]:
        """Steps of the findings of our checks, which see every step."""
        return [step for kind, step in self.findings if "-" in kind]

    @property
    def first(self) -> str:
        """First finding."""
        return f"{self.findings[0][0]} at {self.findings[0][1]}" if self.findings else "-"

    @property
    def end(self) -> int | None:
        """Step in which it has diverged; None if it has not."""
        lowest = math.inf
        for step in range(len(self.losses)):
            if not math.isfinite(self.losses[step]):
                return step
            mean = statistics.fmean(self.losses[max(0, step - SMOOTHED + 1) : step + 1])
            lowest = min(lowest, mean)
            if mean >= TIMES * lowest:
                return step
        return None


def train(recipe: Recipe, seed: int, folder: Path) -> Run:
    """Train by a recipe, watched."""
    torch.manual_seed(seed)
    model = GPT(layers=2, width=24, heads=2)
    model.norm = nn.Identity()
    for block in model.layers:
        block.ln1 = block.ln2 = nn.Identity()
    if recipe.is_half:
        model = model.bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), recipe.rate, betas=(0.9, 0.95), eps=recipe.epsilon)
    monitor = attach(model, optimizer, folder)
    losses, norms = [], []
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = recipe.rate * min(1.0, (step + 1) / recipe.warm_up)
        tokens = text(seed, step, batch=4, length=17)
        if recipe.has_noise and step >= NOISE_FROM and step % NOISE_EVERY == 0:
            tokens = torch.randint(0, VOCABULARY, tokens.shape, generator=generator(seed, step, 1))
        optimizer.zero_grad()
        loss = text_loss(model, tokens)
        loss.backward()
        losses.append(loss.item())
        norms.append(sum(float(p.grad.double().square().sum()) for p in model.parameters()) ** 0.5)
        optimizer.step()
        monitor.log(loss=losses[-1])
        if not math.isfinite(losses[-1]):
            break
    monitor.stop()
    entries = counted(findings_of(monitor, folder))
    return Run(losses, norms, sorted({(entry["kind"], entry["step"]) for entry in entries}, key=lambda pair: pair[1]))


def lead(alarms: Sequence[int], end: int) -> int:
    """Return the steps from the first alarm that stays open to the end; 0 if none is open then."""
    first = end
    for step in sorted({step for step in alarms if step < end}, reverse=True):
        if first - step > OPEN:
            break
        first = step
    return end - first


def limited(series: Callable[[Run], list[float]], runs: Sequence[Run], healthy: Sequence[Run], quiet: int) -> list[int]:
    """Return the leads by a score with the smallest limit at which at most ``quiet`` healthy runs have an alarm."""
    largest = sorted((max(z_scores(series(run)), default=0.0) for run in healthy), reverse=True)
    limit = largest[quiet] if quiet < len(largest) else 0.0
    leads = []
    for run in runs:
        scores = z_scores(series(run))
        leads.append(lead([step for step, score in enumerate(scores) if score > limit], run.end or 0))
    return leads


def columns_of(
    args: argparse.Namespace, runs: Sequence[Run], healthy: Sequence[Run], folder: Path
) -> dict[str, list[int]]:
    """Return the leads of each detector, and of others with as few alarms in the twins as our checks have."""
    quiet = sum(bool(run.checks) for run in healthy)
    columns = {
        f"probe run ({_alarmed([run.alarms for run in healthy])})": [lead(run.alarms, run.end or 0) for run in runs],
        f"its checks alone ({quiet})": [lead(run.checks, run.end or 0) for run in runs],
        f"z-score of the loss ({quiet})": limited(lambda run: run.losses, runs, healthy, quiet),
        f"z-score of the gradient norm ({quiet})": limited(lambda run: run.norms, runs, healthy, quiet),
    }
    for threshold in THRESHOLDS if args.trainscope else ():
        jobs = [{"losses": run.losses, "settings": {"threshold": threshold}} for run in (*runs, *healthy)]
        rises = [[step for step, score in row if score > 0] for row in spikes_of(args.trainscope, folder, jobs)]
        alarmed = _alarmed(rises[len(runs) :])
        if threshold == THRESHOLDS[0] or alarmed <= quiet:
            title = f"trainscope, threshold {threshold:g} ({alarmed})"
            columns[title] = [lead(steps, run.end or 0) for steps, run in zip(rises, runs, strict=False)]
        if alarmed <= quiet:
            break
    return columns


def _alarmed(steps: Sequence[Sequence[int]]) -> int:
    """Return how many runs have an alarm."""
    return sum(map(bool, steps))


def report(
    args: argparse.Namespace, names: Sequence[str], runs: Sequence[Run], twins: Sequence[Run], folder: Path
) -> None:
    """Publish the leads."""
    ended = [(name, run) for name, run in zip(names, runs, strict=True) if run.end is not None]
    columns = columns_of(args, [run for _, run in ended], twins, folder)
    rows = [
        [name, str(run.end), run.first, *(str(leads[row]) for leads in columns.values())]
        for row, (name, run) in enumerate(ended)
    ]
    rows.append(["median", "", "", *(f"{statistics.median(leads or [0]):g}" for leads in columns.values())])
    head = (
        f"{len(ended)} of {len(runs)} faulty runs diverged. Leads in steps; in brackets how many of {len(twins)} "
        "healthy twins have an alarm."
    )
    parts = [head, table(["run", "diverges", "first finding", *columns], rows)]
    publish("Lead before a divergence", parts, args.output)
    if args.json:
        numbers = {name: run._asdict() for name, run in zip(names, runs, strict=True)}
        args.json.write_text(json.dumps({"runs": numbers, "twins": [run._asdict() for run in twins]}), encoding="utf-8")


def parsed() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--trainscope", type=Path, metavar="PYTHON", help="interpreter that has trainscope")
    parser.add_argument("--json", type=Path, help="file for all numbers")
    parser.add_argument("--output", type=Path, help="file for the text, or a directory to put it in")
    return parser.parse_args()


def main() -> int:
    args = parsed()
    torch.set_num_threads(1)
    logging.getLogger("probe").setLevel(logging.ERROR)
    names, runs, healthy = [], [], []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for kind, (faulty, twin) in KINDS.items():
            for seed in args.seeds:
                names.append(f"{kind}, seed {seed}")
                runs.append(train(faulty, seed, folder / f"{len(names)}-faulty"))
                healthy.append(train(twin, seed, folder / f"{len(names)}-healthy"))
                print(f"{names[-1]}: {runs[-1].end} {runs[-1].first}; twin {healthy[-1].first}", flush=True)
        report(args, names, runs, healthy, folder)
    return int(any(run.alarms for run in healthy))


if __name__ == "__main__":
    sys.exit(main())
