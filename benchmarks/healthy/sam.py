"""Sharpness-aware minimization: up along the gradient, a second gradient there, back, and the update."""

from __future__ import annotations

import torch
from data import CNN, arguments, images, report
from torch import Tensor, nn
from torch.nn import functional


class SAM(torch.optim.Optimizer):
    """Wrapper of another optimizer in two steps (Foret et al., 2020)."""

    def __init__(self, parameters: list[Tensor], rho: float, **defaults: float) -> None:
        super().__init__(parameters, {"rho": rho, **defaults})
        self.base_optimizer = torch.optim.SGD(self.param_groups, **defaults)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        """Climb to the neighbour with the largest loss."""
        norm = torch.stack([p.grad.norm() for group in self.param_groups for p in group["params"]]).norm()
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old_p"] = p.data.clone()
                p.add_(p.grad * group["rho"] / (norm + 1e-12))
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        """Return, and update with the gradient of the neighbour."""
        for group in self.param_groups:
            for p in group["params"]:
                p.data = self.state[p]["old_p"]
        self.base_optimizer.step()
        self.zero_grad()


args = arguments()
model: nn.Module = CNN()
optimizer = SAM(list(model.parameters()), rho=0.05, lr=0.05, momentum=0.9)
for step in range(args.steps):
    inputs, targets = images(args.seed, step)
    loss = functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.first_step()
    functional.cross_entropy(model(inputs), targets).backward()
    optimizer.second_step()
    report(step, loss)
