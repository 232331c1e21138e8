"""Sine waves by an LSTM cell, fitted with LBFGS and its closure."""

from __future__ import annotations

import torch
from data import arguments, generator, report
from torch import Tensor, nn


class Sequence(nn.Module):
    """One recurrent cell and a linear map."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.linear = nn.LSTM(1, 16, batch_first=True), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the next value at each place."""
        return self.linear(self.lstm(x)[0])


args = arguments()
phases = 6 * torch.rand(12, 1, 1, generator=generator(args.seed))
waves = torch.sin(torch.arange(33)[None, :, None] / 3.0 + phases)
waves += 0.1 * torch.randn(waves.shape, generator=generator(args.seed, 1))
model = Sequence()
criterion = nn.MSELoss()
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe")


def closure() -> Tensor:
    """Return the loss at the present weights."""
    optimizer.zero_grad()
    value = criterion(model(waves[:, :-1]), waves[:, 1:])
    value.backward()
    return value


for step in range(args.steps):
    loss = optimizer.step(closure)
    report(step, loss)
