"""Arguments and synthetic data of the healthy programs, which are written as public scripts are."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "faults"))

import torch
from common import CLASSES, CNN, GPT, LENGTH, SIDE, VOCABULARY, generator, images, text
from torch import Tensor

__all__ = [
    "CLASSES",
    "CNN",
    "GPT",
    "LENGTH",
    "SIDE",
    "VOCABULARY",
    "arguments",
    "generator",
    "images",
    "report",
    "table",
    "text",
]
REPORTED = 100
"""Steps between two lines of a program."""


def arguments(steps: int = 500) -> argparse.Namespace:
    """Parse ``--steps`` and ``--seed``; seed the generators."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    return args


def report(step: int, loss: Tensor | float) -> None:
    """Print the loss now and then."""
    if step % REPORTED == 0:
        print(f"step {step}: loss {loss.item() if isinstance(loss, Tensor) else loss:.4f}", flush=True)


def table(seed: int, step: int, batch: int = 32, width: int = 32) -> tuple[Tensor, Tensor]:
    """Rows of numbers, and the class that follows from each by a rule of the seed."""
    rule = torch.randn(width, CLASSES, generator=generator(seed))
    rows = torch.randn(batch, width, generator=generator(seed, step))
    return rows, (rows @ rule).argmax(1)
