"""From step 300 on a norm in the middle of the model takes the root of a negative number."""

from __future__ import annotations

from collections import OrderedDict

import torch
from case import NOT_FINITE, Case, Run, watch
from common import CLASSES, generator, main, update
from torch import Tensor, nn
from torch.nn import functional

CASE = Case(
    sources=(
        "https://github.com/pytorch/torchtitan/issues/951",
        "https://github.com/facebookresearch/metaseq/blob/main/projects/OPT/chronicles/OPT175B_Logbook.pdf",
    ),
    label="sentinel",
    kinds=NOT_FINITE,
    start=300,
    where=("*blocks.0.n1*",),
    steps=320,
)


class RootNorm(nn.Module):
    """Division by the root of the mean square."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.epsilon = nn.Parameter(torch.ones(width)), 1e-6

    def forward(self, x: Tensor) -> Tensor:
        """Divide."""
        return self.weight * x / (x.pow(2).mean(-1, keepdim=True) + self.epsilon).sqrt()


class Layer(nn.Module):
    """Two norms, each before a linear map."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.n0, self.up = RootNorm(width), nn.Linear(width, width)
        self.n1, self.down = RootNorm(width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Add the result of both."""
        return x + self.down(functional.gelu(self.n1(self.up(self.n0(x)))))


def train(run: Run) -> None:
    """Train one twin."""
    blocks = nn.ModuleList(Layer(64) for _ in range(3))
    parts = {"first": nn.Linear(32, 64), "blocks": nn.Sequential(*blocks), "head": nn.Linear(64, CLASSES)}
    model = nn.Sequential(OrderedDict(parts))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    monitor = watch(model, optimizer)
    rule = torch.randn(32, CLASSES, generator=generator(run.seed))
    for step in range(run.steps):
        if run.faulty and step == CASE.start:
            blocks[0].n1.epsilon = -1e6
        inputs = torch.randn(32, 32, generator=generator(run.seed, step))
        loss = functional.cross_entropy(model(inputs), (inputs @ rule).argmax(1))
        update(optimizer, loss)
        monitor.log(loss=loss)
    monitor.stop()


if __name__ == "__main__":
    main(CASE, train)
