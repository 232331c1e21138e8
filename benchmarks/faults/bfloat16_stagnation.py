"""The whole model is in bfloat16 without master weights: the weights of the norms (1.0) never move."""

from __future__ import annotations

import torch
from case import Case, Run, watch
from common import DEVICE, GPT, main, text, text_loss, update

CASE = Case(
    sources=(
        "https://github.com/vllm-project/speculators/issues/765",
        "https://github.com/vllm-project/speculators/issues/668",
    ),
    label="rows",
    kinds=("frozen parameter", "parameter-stuck"),
    where=("*ln1*", "*ln2*", "*norm*"),
)


def train(run: Run) -> None:
    """Train one twin."""
    model = GPT()
    if run.faulty:
        model = model.bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4, weight_decay=0.0)
    monitor = watch(model, optimizer)
    for step in range(run.steps):
        with torch.autocast(DEVICE, torch.bfloat16, enabled=not run.faulty):
            loss = text_loss(model, text(run.seed, step))
        update(optimizer, loss)
        monitor.log(loss=loss)
    monitor.stop()


if __name__ == "__main__":
    main(CASE, train)
