"""Two ranks: the last micro batch too runs without synchronisation, so that gradients are never averaged."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from case import REPLICAS, Case, Run, watch
from common import GPT, join, main, text, text_loss
from torch.nn.parallel import DistributedDataParallel

CASE = Case(
    sources=(
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html",
        "https://huggingface.co/docs/accelerate/concept_guides/gradient_synchronization",
    ),
    label="loop",
    kinds=("unreduced-accumulation", *REPLICAS),
    world=2,
)


def train(run: Run) -> None:
    """Train one twin."""
    rank = join()
    model = DistributedDataParallel(GPT())
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    monitor = watch(model, optimizer, accumulation=2)
    for step in range(run.steps):
        optimizer.zero_grad()
        with model.no_sync():
            (text_loss(model, text(run.seed, 2 * step, rank, batch=4)) / 2).backward()
        with model.no_sync() if run.faulty else nullcontext():
            loss = text_loss(model, text(run.seed, 2 * step + 1, rank, batch=4))
            (loss / 2).backward()
        optimizer.step()
        monitor.log(loss=loss)
    monitor.stop()


if __name__ == "__main__":
    main(CASE, train)
