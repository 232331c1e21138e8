"""Two tasks in turn with losses of very different size, and a rare third one, on one trunk."""

from __future__ import annotations

import torch
from data import arguments, generator, report
from torch import Tensor, nn
from torch.nn import functional

LONG = True


class Net(nn.Module):
    """Three heads on one trunk."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.heads = nn.ModuleDict({"classes": nn.Linear(64, 10), "size": nn.Linear(64, 1), "rare": nn.Linear(64, 1)})

    def forward(self, x: Tensor, task: str) -> Tensor:
        """Return the output of one head."""
        return self.heads[task](self.trunk(x))


args = arguments()
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
random = generator(args.seed)
rule, direction = torch.randn(32, 10, generator=random), torch.randn(32, 1, generator=random)
for step in range(args.steps):
    x = torch.randn(32, 32, generator=random)
    if step % 50 == 49:
        loss = functional.mse_loss(model(x, "rare"), x.pow(3).sum(1, keepdim=True))
    elif step % 2:
        loss = functional.cross_entropy(model(x, "classes"), (x @ rule).argmax(1))
    else:
        loss = functional.mse_loss(model(x, "size"), 20 * x @ direction)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    report(step, loss)
