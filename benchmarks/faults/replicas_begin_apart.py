"""Two ranks average gradients by hand, but begin with weights of different seeds: nothing was broadcast."""

from __future__ import annotations

import torch
import torch.distributed as dist
from case import REPLICAS, Case, Run, watch
from common import GPT, join, main, text, text_loss

CASE = Case(
    sources=(
        "https://horovod.readthedocs.io/en/stable/pytorch.html",
        "https://docs.pytorch.org/docs/stable/notes/ddp.html",
    ),
    label="ranks",
    kinds=REPLICAS,
    world=2,
)


def train(run: Run) -> None:
    """Train one twin."""
    rank = join()
    if run.faulty:
        torch.manual_seed(1000 * run.seed + rank)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    monitor = watch(model, optimizer, dp_group=dist.group.WORLD)
    for step in range(run.steps):
        loss = text_loss(model, text(run.seed, step, rank))
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad.div_(dist.get_world_size())
        optimizer.step()
        monitor.log(loss=loss)
    monitor.stop()


if __name__ == "__main__":
    main(CASE, train)
