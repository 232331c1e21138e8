"""A decoder whose causal mask is not applied, as an option is not read: it sees the future, the loss falls too far."""

from __future__ import annotations

import torch
from case import Case, Run, watch
from common import GPT, main, text, text_loss, update

CASE = Case(
    sources=("https://github.com/huggingface/transformers/issues/48745",),
    label="before",
    kinds=("not-causal",),
)


def train(run: Run) -> None:
    """Train one twin."""
    model = GPT()
    for layer in model.layers:
        layer.attn.core.is_causal = not run.faulty
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    monitor = watch(model, optimizer)
    for step in range(run.steps):
        loss = text_loss(model, text(run.seed, step))
        update(optimizer, loss)
        monitor.log(loss=loss)
    monitor.stop()


if __name__ == "__main__":
    main(CASE, train)
