"""Two ranks without a distributed sampler: both train on the same batches."""

from __future__ import annotations

import torch
from case import Case, Run, watch
from common import GPT, join, main, text, text_loss, update
from torch.nn.parallel import DistributedDataParallel

CASE = Case(
    sources=("https://github.com/NVlabs/LongLive/issues/71", "https://docs.pytorch.org/docs/stable/data.html"),
    label="ranks",
    kinds=("same-data",),
    world=2,
)


def train(run: Run) -> None:
    """Train one twin."""
    rank = join()
    model = DistributedDataParallel(GPT())
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    monitor = watch(model, optimizer)
    for step in range(run.steps):
        loss = text_loss(model, text(run.seed, step, 0 if run.faulty else rank))
        update(optimizer, loss)
        monitor.log(loss=loss)
    monitor.stop()


if __name__ == "__main__":
    main(CASE, train)
