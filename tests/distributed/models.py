"""A small model whose ranks train on different data, and what it does without any of the wrappers."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.required import require

torch = require("torch")

import torch.distributed as dist  # noqa: E402 - only where torch is

WIDTH = 6


class Net(torch.nn.Module):
    """Two linear layers with a nonlinearity and a normalisation; sizes that two ranks cannot share evenly."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.up, self.norm = torch.nn.Linear(WIDTH, 5), torch.nn.LayerNorm(5)
            self.down = torch.nn.Linear(5, 3, bias=False)

    def forward(self, x: Any) -> Any:
        return self.down(torch.tanh(self.norm(self.up(x))))


def batch(step: int, micro_batch: int, rank: int | None = None) -> Any:
    """Training data of a rank: different for each, step and micro batch."""
    rank = dist.get_rank() if rank is None else rank
    generator = torch.Generator().manual_seed(1000 * step + 100 * micro_batch + rank)
    return torch.randn(4, WIDTH, generator=generator)


def loss_of(outputs: Any) -> Any:
    """A loss that no gradient vanishes under."""
    return (outputs.square() + outputs).mean()


class Reference(NamedTuple):
    """One training step, computed without wrappers or monitor."""

    local: list[dict[str, Any]]
    """This rank's own gradients, by micro batch."""
    reduced: dict[str, Any]
    """Their sum over micro batches, averaged over ranks."""
    before: dict[str, Any]
    after: dict[str, Any]


def gradients(model: Any, step: int, micro_batch: int, rank: int) -> dict[str, Any]:
    """Of one micro batch of one rank."""
    found = torch.autograd.grad(loss_of(model(batch(step, micro_batch, rank))), list(model.parameters()))
    return {name: gradient for (name, _), gradient in zip(model.named_parameters(), found, strict=True)}


def by_hand(steps: int, micro_batches: int, lr: float) -> list[Reference]:
    """Each step of gradient descent on all ranks' data; each rank computes all of it."""
    model, world, references = Net(), dist.get_world_size(), []
    for step in range(steps):
        own = [[gradients(model, step, i, rank) for i in range(micro_batches)] for rank in range(world)]
        reduced = {name: sum(one[name] for each in own for one in each) / world for name in own[0][0]}
        before = copy_of(model)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.sub_(lr * reduced[name])
        references.append(Reference(own[dist.get_rank()], reduced, before, copy_of(model)))
    return references


def copy_of(model: Any) -> dict[str, Any]:
    """The parameters now, by name."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
