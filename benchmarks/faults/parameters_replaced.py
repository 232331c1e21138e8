"""The vocabulary grows after the optimizer was made: it holds the old table, the new one never moves."""

from __future__ import annotations

import torch
from case import Case, Run, watch
from common import GPT, VOCABULARY, main, text, text_loss, update
from torch import nn

CASE = Case(
    sources=(
        "https://docs.pytorch.org/docs/stable/optim.html#constructing-it",
        "https://huggingface.co/docs/transformers/main_classes/model",
    ),
    label="loop",
    kinds=("parameters-replaced", "frozen parameter"),
    where=("*embed*",),
)
WIDTH = 48


def train(run: Run) -> None:
    """Train one twin."""
    model = GPT()
    model.embed = nn.Embedding(VOCABULARY // 2, WIDTH)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    table = model.embed.weight.detach()
    model.embed = nn.Embedding(VOCABULARY, WIDTH)
    model.embed.weight.data[: len(table)] = table
    if not run.faulty:
        optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    monitor = watch(model, optimizer)
    for step in range(run.steps):
        loss = text_loss(model, text(run.seed, step))
        update(optimizer, loss)
        monitor.log(loss=loss)
    monitor.stop()


if __name__ == "__main__":
    main(CASE, train)
