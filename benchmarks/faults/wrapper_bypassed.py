"""Two ranks: the loss is computed by the module inside DDP, so that gradients are not averaged."""

from __future__ import annotations

import torch
from case import REPLICAS, Case, Run, watch
from common import GPT, join, main, text, text_loss, update
from torch.nn.parallel import DistributedDataParallel

CASE = Case(
    sources=(
        "https://github.com/huggingface/trl/issues/7245",
        "https://github.com/jingyaogong/minimind/issues/854",
        "https://arxiv.org/abs/2506.14813",
    ),
    label="loop",
    kinds=REPLICAS,
    world=2,
)


def train(run: Run) -> None:
    """Train one twin."""
    rank = join()
    model = DistributedDataParallel(GPT())
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    monitor = watch(model, optimizer)
    for step in range(run.steps):
        loss = text_loss(model.module if run.faulty else model, text(run.seed, step, rank))
        update(optimizer, loss)
        monitor.log(loss=loss)
    monitor.stop()


if __name__ == "__main__":
    main(CASE, train)
