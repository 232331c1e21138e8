"""A table that embedding and head share is moved in the middle, and only one of them is tied to the result."""

from __future__ import annotations

import torch
from case import ONSET, Case, Run, watch
from common import GPT, main, text, text_loss, update
from torch import nn

CASE = Case(
    sources=(
        "https://huggingface.co/docs/accelerate/concept_guides/training_tpu",
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.load_state_dict",
    ),
    label="loop",
    kinds=("tie-broken",),
    start=ONSET,
    where=("*head*", "*embed*"),
)


def train(run: Run) -> None:
    """Train one twin."""
    model = GPT(tied=True)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    monitor = watch(model, optimizer)
    for step in range(run.steps):
        if run.faulty and step == ONSET:
            model.head.weight = nn.Parameter(model.embed.weight.detach().clone())
            optimizer.add_param_group({"params": [model.head.weight]})
        loss = text_loss(model, text(run.seed, step))
        update(optimizer, loss)
        monitor.log(loss=loss)
    monitor.stop()


if __name__ == "__main__":
    main(CASE, train)
