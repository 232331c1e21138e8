"""Two ranks whose random generators begin alike: dropout hides the same units on both."""

from __future__ import annotations

import torch
from case import Case, Run, watch
from common import GPT, join, main, text, text_loss, update
from torch.nn.parallel import DistributedDataParallel

CASE = Case(
    sources=(
        "https://docs.pytorch.org/docs/stable/notes/randomness.html",
        "https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/tensor_parallel/random.py",
    ),
    label="before",
    kinds=("same-dropout",),
    world=2,
)


def train(run: Run) -> None:
    """Train one twin."""
    rank = join()
    model = DistributedDataParallel(GPT(dropout=0.2))
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    torch.manual_seed(1000 * run.seed + (0 if run.faulty else rank))
    monitor = watch(model, optimizer)
    for step in range(run.steps):
        loss = text_loss(model, text(run.seed, step, rank))
        update(optimizer, loss)
        monitor.log(loss=loss)
    monitor.stop()


if __name__ == "__main__":
    main(CASE, train)
