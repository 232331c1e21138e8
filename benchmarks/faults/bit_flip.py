"""Two ranks: a high bit of the exponent of one weight flips on one rank between two steps."""

from __future__ import annotations

import torch
from case import LEAP, ONSET, REPLICAS, Case, Run, watch
from common import GPT, join, main, text, text_loss, update
from torch.nn.parallel import DistributedDataParallel

CASE = Case(
    sources=("https://arxiv.org/abs/2604.00726", "https://arxiv.org/abs/2407.21783"),
    label="ranks",
    kinds=("written-between-updates", *REPLICAS, *LEAP),
    start=ONSET,
    where=("*layers.1.mlp.up.weight*",),
    ranks=(1,),
    world=2,
)


def train(run: Run) -> None:
    """Train one twin."""
    rank = join()
    model = DistributedDataParallel(GPT())
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    monitor = watch(model, optimizer)
    for step in range(run.steps):
        if run.faulty and rank == 1 and step == ONSET:
            weight = model.module.layers[1].mlp.up.weight.data.view(-1)
            weight.view(torch.int32)[100] ^= 1 << 29
        loss = text_loss(model, text(run.seed, step, rank))
        update(optimizer, loss)
        monitor.log(loss=loss)
    monitor.stop()


if __name__ == "__main__":
    main(CASE, train)
