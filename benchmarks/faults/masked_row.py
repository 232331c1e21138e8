"""A sample is nothing but padding: all its scores are -inf, and softmax makes NaN of them."""

from __future__ import annotations

import torch
from case import NOT_FINITE, ONSET, Case, Run, watch
from common import GPT, LENGTH, main, text, text_loss, update
from torch import Tensor, nn

CASE = Case(
    sources=("https://github.com/pytorch/pytorch/issues/41508",),
    label="sentinel",
    kinds=NOT_FINITE,
    start=ONSET + 1,
    where=("*layers.0.attn*",),
)


class Padded(nn.Module):
    """Attention to earlier tokens within the length of each sample."""

    lengths: Tensor

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend."""
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        positions = torch.arange(scores.shape[-1])
        is_hidden = (positions > positions[:, None]) | (positions >= self.lengths)
        return scores.masked_fill(is_hidden, float("-inf")).softmax(-1) @ value


def train(run: Run) -> None:
    """Train one twin."""
    model = GPT()
    for layer in model.layers:
        layer.attn.core = Padded()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    monitor = watch(model, optimizer)
    for step in range(run.steps):
        tokens = text(run.seed, step)
        Padded.lengths = torch.full((len(tokens), 1, 1, 1), LENGTH)
        if run.faulty and step == CASE.start:
            Padded.lengths[3] = 0
        loss = text_loss(model, tokens)
        update(optimizer, loss)
        monitor.log(loss=loss)
    monitor.stop()


if __name__ == "__main__":
    main(CASE, train)
