"""Reentrant checkpointing of blocks behind frozen embeddings: only the head gets gradients."""

from __future__ import annotations

import torch
from case import Case, Run, watch
from common import GPT, main, text, text_loss, update
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CASE = Case(
    sources=(
        "https://github.com/huggingface/transformers/issues/21381",
        "https://github.com/huggingface/transformers/issues/23170",
        "https://github.com/huggingface/diffusers/issues/3404",
    ),
    label="loop",
    kinds=("no-gradient", "gradient-gone", "checkpoint-cut"),
    where=("*layers*",),
)


class Checkpointed(GPT):
    """Decoder whose blocks run again in the backward."""

    def __init__(self, is_reentrant: bool) -> None:
        super().__init__()
        self.is_reentrant = is_reentrant

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of each next token."""
        x = self.embed(tokens) + self.pos(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=self.is_reentrant)
        return self.head(self.norm(x))


def train(run: Run) -> None:
    """Train one twin."""
    model = Checkpointed(is_reentrant=run.faulty)
    model.embed.requires_grad_(False)
    model.pos.requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 2e-3)
    monitor = watch(model, optimizer)
    for step in range(run.steps):
        loss = text_loss(model, text(run.seed, step))
        update(optimizer, loss)
        monitor.log(loss=loss)
    monitor.stop()


if __name__ == "__main__":
    main(CASE, train)
