"""Two ranks: from one step on, a product on one rank is now and then wrong in one element (a faulty core)."""

from __future__ import annotations

import torch
from case import LEAP, ONSET, Case, Run, watch
from common import GPT, join, main, text, text_loss, update
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

CASE = Case(
    sources=("https://arxiv.org/abs/2502.12340", "https://arxiv.org/abs/2604.00726"),
    label="ranks",
    kinds=("rank-unlike-peers", *LEAP),
    start=ONSET,
    ranks=(1,),
    world=2,
)


class Faulty(nn.Linear):
    """Layer that is wrong in one element at times."""

    is_wrong = False

    def forward(self, x: Tensor) -> Tensor:
        """Multiply."""
        result = super().forward(x)
        if self.is_wrong:
            error = torch.zeros_like(result)
            error.view(-1)[777] = 300.0
            result = result + error
        return result


def train(run: Run) -> None:
    """Train one twin."""
    rank = join()
    model = DistributedDataParallel(GPT())
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    model.module.layers[1].mlp.down.__class__ = Faulty
    monitor = watch(model, optimizer)
    for step in range(run.steps):
        Faulty.is_wrong = run.faulty and rank == 1 and step >= ONSET and step % 5 == 0
        loss = text_loss(model, text(run.seed, step, rank))
        update(optimizer, loss)
        monitor.log(loss=loss)
    monitor.stop()


if __name__ == "__main__":
    main(CASE, train)
