"""A recurrence with learned step sizes whose bias begins at ones where small steps on a log scale were meant."""

from __future__ import annotations

import torch
from case import Case, Run, watch
from common import GPT, main, text, text_loss, update
from torch import Tensor, nn
from torch.nn import functional

CASE = Case(
    sources=("https://github.com/fla-org/flash-linear-attention/issues/739",),
    label="twin",
    kinds=("initialisation",),
    where=("*dt_bias*",),
)


class Scan(nn.Module):
    """Recurrence that forgets by learned step sizes."""

    def __init__(self, width: int, is_right: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(width, width), nn.Linear(width, width)
        sizes = torch.exp(torch.rand(width) * 4.6 - 6.9)  # 0.001 to 0.1
        self.dt_bias = nn.Parameter(sizes + torch.log(-torch.expm1(-sizes)) if is_right else torch.ones(width))
        self.a = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """Go over the tokens."""
        sizes = functional.softplus(self.dt_bias)
        rate = torch.exp(-sizes * torch.exp(self.a))
        inputs, state = self.first(x), torch.zeros_like(x[:, 0])
        states = []
        for n in range(x.shape[1]):
            state = rate * state + sizes * inputs[:, n]
            states.append(state)
        return self.last(torch.stack(states, 1))


def train(run: Run) -> None:
    """Train one twin."""
    model = GPT()
    for layer in model.layers:
        layer.attn = Scan(48, is_right=not run.faulty)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    monitor = watch(model, optimizer)
    for step in range(run.steps):
        loss = text_loss(model, text(run.seed, step))
        update(optimizer, loss)
        monitor.log(loss=loss)
    monitor.stop()


if __name__ == "__main__":
    main(CASE, train)
