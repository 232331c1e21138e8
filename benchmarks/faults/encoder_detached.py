"""After a validation in the middle the encoder still runs without gradients: only the head trains."""

from __future__ import annotations

import torch
from case import ONSET, Case, Run, watch
from common import CLASSES, generator, main, update
from torch import Tensor, nn
from torch.nn import functional

CASE = Case(
    sources=("https://docs.pytorch.org/docs/stable/notes/autograd.html#locally-disabling-gradient-computation",),
    label="loop",
    kinds=("gradient-gone", "no-gradient"),
    start=ONSET,
    where=("*encoder*",),
)


class Classifier(nn.Module):
    """Head on an encoder that can run without gradients."""

    is_evaluated = False

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the classes."""
        with torch.set_grad_enabled(not self.is_evaluated):
            x = self.encoder(x)
        with torch.enable_grad():
            return self.head(x)


def train(run: Run) -> None:
    """Train one twin."""
    encoder = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    model = Classifier(encoder)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    monitor = watch(model, optimizer)
    rule = torch.randn(32, CLASSES, generator=generator(run.seed))
    for step in range(run.steps):
        model.is_evaluated = run.faulty and step >= ONSET
        inputs = torch.randn(32, 32, generator=generator(run.seed, step))
        loss = functional.cross_entropy(model(inputs), (inputs @ rule).argmax(1))
        update(optimizer, loss)
        monitor.log(loss=loss)
    monitor.stop()


if __name__ == "__main__":
    main(CASE, train)
