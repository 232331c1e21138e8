"""The rate grows fivefold at each step from the middle on: the loss leaps, and ends as NaN."""

from __future__ import annotations

import torch
from case import LEAP, NOT_FINITE, ONSET, Case, Run, watch
from common import GPT, main, text, text_loss, update

CASE = Case(
    sources=(
        "https://arxiv.org/abs/1506.01186",
        "https://github.com/facebookresearch/metaseq/blob/main/projects/OPT/chronicles/OPT175B_Logbook.pdf",
    ),
    label="sentinel",
    kinds=(*LEAP, *NOT_FINITE),
    start=ONSET + 1,  # the first forward after an update at such a rate
)


def train(run: Run) -> None:
    """Train one twin."""
    model = GPT()
    optimizer = torch.optim.SGD(model.parameters(), 0.3, momentum=0.9)
    monitor = watch(model, optimizer)
    for step in range(run.steps):
        if run.faulty and step >= ONSET:
            optimizer.param_groups[0]["lr"] = min(5 * optimizer.param_groups[0]["lr"], 1e6)
        loss = text_loss(model, text(run.seed, step))
        update(optimizer, loss)
        monitor.log(loss=loss)
    monitor.stop()


if __name__ == "__main__":
    main(CASE, train)
