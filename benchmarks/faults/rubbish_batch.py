"""One batch of rubbish (two tokens repeated) at a high rate: the loss spikes."""

from __future__ import annotations

import torch
from case import LEAP, ONSET, Case, Run, watch
from common import GPT, main, text, text_loss
from torch import nn

CASE = Case(
    sources=(
        "https://github.com/facebookresearch/metaseq/blob/main/projects/OPT/chronicles/OPT175B_Logbook.pdf",
        "https://huggingface.co/LLM360/K2-Spike-2",
    ),
    label="sentinel",
    kinds=(*LEAP, "bad batch"),
    start=ONSET,
)


def train(run: Run) -> None:
    """Train one twin."""
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), 6e-3, betas=(0.9, 0.95))
    monitor = watch(model, optimizer)
    for step in range(run.steps):
        tokens = text(run.seed, step)
        if run.faulty and step == ONSET:
            tokens[:, 0::2], tokens[:, 1::2] = 17, 3
        optimizer.zero_grad()
        loss = text_loss(model, tokens)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        monitor.log(loss=loss, grad_norm=norm)
    monitor.stop()


if __name__ == "__main__":
    main(CASE, train)
