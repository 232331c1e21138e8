"""MAML with ``torch.func``: one update of copies for each of four tasks, and one of what they begin with."""

from __future__ import annotations

import torch
from data import arguments, generator, report
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

args = arguments()
model = nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def loss_of(weights: dict[str, torch.Tensor], inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean of the squared differences with other weights."""
    return functional.mse_loss(functional_call(model, weights, (inputs,)), targets)


def adapted(weights: dict[str, torch.Tensor], task: torch.Tensor) -> torch.Tensor:
    """Loss on the second half of a task after an update on the first."""
    inputs, targets = task[:10, :1], task[:10, 1:]
    slopes = grad(loss_of)(weights, inputs, targets)
    moved = {name: weight - 0.05 * slopes[name] for name, weight in weights.items()}
    return loss_of(moved, task[10:, :1], task[10:, 1:])


for step in range(args.steps):
    random = generator(args.seed, step)
    heights, phases = torch.rand(4, 1, 1, generator=random) * 4 + 0.1, torch.rand(4, 1, 1, generator=random) * 3
    inputs = torch.rand(4, 20, 1, generator=random) * 10 - 5
    tasks = torch.cat([inputs, heights * torch.sin(inputs + phases)], dim=2)
    weights = dict(model.named_parameters())
    loss = vmap(adapted, in_dims=(None, 0))(weights, tasks).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    report(step, loss)
