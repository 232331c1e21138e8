"""Bit flips in one computation of a training step: how many are harmful, and how many of these are found and placed.

    python benchmarks/bit_flips.py [--world 1] [--every 5] [--first 0] [--twins 10] [--seed 0] [--json FILE]

The flips are those of ``_bit_flips.py``, after https://arxiv.org/abs/2604.00726: bits 20 to 30 of float32 in the output
of a module, the gradient of its input or that of its weight, in one element or a tile, in four layers and at three
stages of training. ``--every`` takes one of so many, from the one of the number ``--first`` on.

*Harmful*: within 20 steps the loss or the norm of the gradients leaves the band of the twins, which differ by rounding
only, by 5 of their standard deviations, or is not finite. *Found*: a warning from the step of the flip to the tenth
after it, with 95 % bootstrap intervals over sites and bits. *Layer right*: it names the layer or its neighbour. *Loss
and norm alone*: the same criterion with the band of the 20 steps before. As the band of the twins is narrow, most flips
that count as harmful move the loss by less than the next batch does: a table has them by that.

With ``--world 4`` one of four data-parallel ranks has the flip. Whether it is harmful is computed in one process, which
adds up the gradients of the four; what is found, by ``probe run`` with four processes.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from _bit_flips import LAYERS, STEPS, Flip, flips, install
from _finding import LATEST, counted
from _finding_runs import HERE
from _report import publish, shared, table
from _watched_training import attach, findings_of
from common import GPT, generator, text, text_loss
from torch import nn

WITHIN, SPREADS, FLOOR = 20, 5.0, 1e-6
"""Steps in which harm shows; standard deviations beyond a band; the least of these, relative to the value."""
PAST = 20
CHANGES = 0.1, 0.01, 0.001
"""Relative changes of the loss that part harmful flips into classes."""
SCRIPT = HERE / "_bit_flips.py"


class Run(NamedTuple):
    """Numbers of a run, and what was found in it."""

    losses: list[float]
    norms: list[float]
    findings: list[dict[str, Any]]


class Result(NamedTuple):
    """Result of a flip."""

    flip: Flip
    harmful: bool
    by_numbers: bool
    """True if loss or norm alone show it."""
    found: bool
    layer: bool
    """True if a finding in time names the layer or its neighbour."""
    rank: bool
    """True if the first finding in time is about this rank alone."""
    kinds: list[str]
    change: float
    """Largest distance of the loss from the twins' mean, relative to it; infinite if it is not finite."""

    @property
    def family(self) -> str:
        """Flips of a site and a bit are alike."""
        return f"{self.flip.site} {self.flip.bit}"


def train(
    args: argparse.Namespace, steps: int, flip: Flip | None = None, twin: int = 0, folder: Path | None = None
) -> Run:
    """Train in this process, with the batches of all ranks one after the other.

    Args:
        twin: number of the twin, whose weights begin one rounding apart; 0 for none.
        folder: folder for the files of a monitor; None for none.
    """
    torch.manual_seed(args.seed)
    model, place = GPT(layers=LAYERS, width=32), {"step": -1, "rank": -1}
    if twin:
        _round(model, twin)
    if flip is not None:
        install(model, flip, lambda: place["step"] if place["rank"] == flip.rank else -1, flip.rank)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    monitor = None if folder is None else attach(model, optimizer, folder)
    losses, norms = [], []
    for step in range(steps):
        place["step"] = step
        losses.append(0.0)
        optimizer.zero_grad()
        for rank in range(args.world):
            place["rank"] = rank
            loss = text_loss(model, text(args.seed, step, rank, batch=4)) / args.world
            loss.backward()
            losses[-1] += loss.item()
        norms.append(sum(float(p.grad.square().sum()) for p in model.parameters()) ** 0.5)
        optimizer.step()
        if monitor is not None:
            monitor.log(loss=losses[-1])
    if monitor is None or folder is None:
        return Run(losses, norms, [])
    monitor.stop()
    return Run(losses, norms, counted(findings_of(monitor, folder)))


@torch.no_grad()
def _round(model: nn.Module, twin: int) -> None:
    """Move half of the weights to the next number."""
    for number, parameter in enumerate(model.parameters()):
        is_moved = torch.rand(parameter.shape, generator=generator(twin, number)) < 0.5
        parameter.copy_(torch.where(is_moved, torch.nextafter(parameter, torch.tensor(math.inf)), parameter))


def leaves(value: float, band: Sequence[float]) -> bool:
    """Return whether a value leaves a band by so many spreads, or is not finite."""
    margin = SPREADS * max(statistics.pstdev(band), FLOOR * abs(statistics.fmean(band)))
    return not math.isfinite(value) or not min(band) - margin <= value <= max(band) + margin


def judge(flip: Flip, run: Run, twins: Sequence[Run], findings: Sequence[dict[str, Any]]) -> Result:
    """Judge a run with a flip."""
    span = range(flip.step, min(flip.step + WITHIN + 1, len(run.losses)))
    pairs = [(run.losses, [twin.losses for twin in twins]), (run.norms, [twin.norms for twin in twins])]
    harmful = any(leaves(own[step], [row[step] for row in rows]) for own, rows in pairs for step in span)
    by_numbers = any(leaves(own[step], own[flip.step - PAST : flip.step]) for own, _ in pairs for step in span)
    entries = [entry for entry in counted(findings) if flip.step <= entry["step"] <= flip.step + LATEST]
    return Result(
        flip,
        harmful,
        by_numbers,
        bool(entries),
        any(_near(flip, entry["where"] or "") for entry in entries),
        _ranks(entries) == {flip.rank},
        sorted({entry["kind"] for entry in entries}),
        max(_change(run.losses[step], [twin.losses[step] for twin in twins]) for step in span),
    )


def _change(loss: float, twins: Sequence[float]) -> float:
    """Return the distance of a loss from the mean of the twins', relative to it."""
    usual = statistics.fmean(twins)
    return abs(loss - usual) / usual if math.isfinite(loss) else math.inf


def _ranks(entries: Sequence[dict[str, Any]]) -> set[int]:
    """Return the ranks of the first finding, with those of the same kind in the same step."""
    first = [entry for entry in entries if (entry["kind"], entry["step"]) == (entries[0]["kind"], entries[0]["step"])]
    return {rank for entry in first for rank in (entry["rank"] if isinstance(entry["rank"], list) else [entry["rank"]])}


def _near(flip: Flip, where: str) -> bool:
    """Return whether a place is in the layer of the flip or beside it."""
    layer = int(flip.module.split(".")[1])
    return any(f"layers.{near}." in f"{where}." for near in (layer - 1, layer, layer + 1))


def of_ranks(number: int, args: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Return the findings of ``probe run`` with a process for each rank."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(args.world)]
    program = [sys.executable, *torchrun, str(SCRIPT), "--flip", str(number), "--seed", str(args.seed)]
    command = [sys.executable, "-m", "probe", "run", "--", *program]
    folder.mkdir(parents=True)
    subprocess.run(command, check=True, capture_output=True, cwd=folder)
    listed = [sys.executable, "-m", "probe", "anomalies", str(folder / "monitor_output"), "--json"]
    answer = subprocess.run(listed, check=False, capture_output=True, text=True).stdout
    findings: list[dict[str, Any]] = json.loads(answer or '{"findings": []}')["findings"]
    return findings


def summary(results: Sequence[Result], world: int) -> str:
    """Table by site: harmful, and of these found, placed, and seen in loss or norm alone."""
    rows = []
    for site in (*dict.fromkeys(result.flip.site for result in results), "all"):
        chosen = [result for result in results if site in (result.flip.site, "all")]
        harmful = [result for result in chosen if result.harmful]
        found = [result for result in harmful if result.found]
        ranks = [str(sum(result.rank for result in found))] if world > 1 else []
        counts = [str(len(chosen)), str(len(harmful)), _found_of(harmful), str(sum(result.layer for result in found))]
        rows.append([site, *counts, *ranks, str(sum(result.by_numbers for result in harmful))])
    head = ["flip in", "flips", "harmful", "of these found", "layer right", *["rank right"] * (world > 1)]
    return table([*head, "loss and norm alone"], rows)


def _found_of(harmful: Sequence[Result]) -> str:
    return shared([result.found for result in harmful], [result.family for result in harmful])


def change_table(results: Sequence[Result]) -> str:
    """Table of the harmful flips by how far they move the loss."""
    rows = []
    for least in (*CHANGES, 0.0):
        chosen = [result for result in results if result.harmful and _class_of(result.change) == least]
        rows.append([f"{100 * least:g} % or more", _found_of(chosen)])
    return table(["loss moved by", "harmful flips found"], rows)


def _class_of(change: float) -> float:
    return next((least for least in CHANGES if change >= least), 0.0)


def list_table(results: Sequence[Result]) -> str:
    """Table with a line for each harmful flip."""
    rows = [
        [
            f"{flip.site}, {flip.module}, bit {flip.bit}, step {flip.step}, side {flip.tile}",
            ", ".join(kinds) or "-",
            "yes" if layer else "-",
            "yes" if by_numbers else "-",
        ]
        for flip, harmful, by_numbers, _, layer, _, kinds, _ in results
        if harmful
    ]
    return table(["harmful flip", "found as", "layer right", "loss and norm alone"], rows)


def parsed() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", type=int, default=1, help="data-parallel ranks")
    parser.add_argument("--every", type=int, default=5, help="one of so many flips")
    parser.add_argument("--first", type=int, default=0, help="number of the first flip")
    parser.add_argument("--twins", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="file for all results")
    parser.add_argument("--output", type=Path, help="file for the text, or a directory to put it in")
    return parser.parse_args()


def main() -> int:
    args = parsed()
    torch.set_num_threads(1)
    logging.getLogger("probe").setLevel(logging.ERROR)
    results = []
    with tempfile.TemporaryDirectory() as place:
        folder, watched = Path(place), args.world == 1
        twins = [train(args, STEPS, twin=number) for number in range(1, args.twins + 1)]
        print(f"{len(twins)} twins", flush=True)
        healthy = train(args, STEPS, folder=folder / "healthy") if watched else None
        for number, flip in list(enumerate(flips(args.world)))[args.first :: args.every]:
            steps = min(STEPS, flip.step + WITHIN + 1)
            run = train(args, steps, flip, folder=folder / str(number) if watched else None)
            findings = run.findings if watched else of_ranks(number, args, folder / str(number))
            results.append(judge(flip, run, twins, findings))
            print(*results[-1], flush=True)
    alarms = "-" if healthy is None else str(len(healthy.findings))
    head = (
        f"{len(results)} flips, {args.world} rank(s), {len(twins)} twins; warnings of the run without a flip: {alarms}."
    )
    publish("Bit flips", [head, summary(results, args.world), change_table(results), list_table(results)], args.output)
    if args.json:
        entries = [result._asdict() | {"flip": result.flip._asdict()} for result in results]
        args.json.write_text(json.dumps(entries, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
