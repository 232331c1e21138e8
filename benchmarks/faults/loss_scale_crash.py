"""Activations leave the range of float16 from one step on; the scaler halves its factor at each step, to nothing."""

from __future__ import annotations

from collections import OrderedDict

import torch
from case import NOT_FINITE, ONSET, Case, Run, watch
from common import DEVICE, generator, main
from torch import Tensor, nn
from torch.nn import functional

CASE = Case(
    sources=("https://github.com/facebookresearch/metaseq/blob/main/projects/OPT/chronicles/OPT175B_Logbook.pdf",),
    label="sentinel",
    kinds=(*NOT_FINITE, "RunOverflow"),
    start=ONSET,
    where=("*gain*", "*fc2*"),
)


class Gain(nn.Module):
    """Multiplication by a factor."""

    factor = 1.0

    def forward(self, x: Tensor) -> Tensor:
        """Multiply."""
        return x * self.factor


def train(run: Run) -> None:
    """Train one twin."""
    gain = Gain()
    parts = {"fc1": nn.Linear(32, 64), "act1": nn.GELU(), "gain": gain, "fc2": nn.Linear(64, 64), "act2": nn.GELU()}
    model = nn.Sequential(OrderedDict(parts | {"fc3": nn.Linear(64, 10)}))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=1024.0, growth_interval=50)
    monitor = watch(model, optimizer)
    rule = torch.randn(32, 10, generator=generator(run.seed))
    for step in range(run.steps):
        gain.factor = 1e6 if run.faulty and step >= ONSET else 1.0
        inputs = torch.randn(32, 32, generator=generator(run.seed, step))
        optimizer.zero_grad()
        with torch.autocast(DEVICE, torch.float16):
            loss = functional.cross_entropy(model(inputs).float(), (inputs @ rule).argmax(1))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        monitor.log(loss=loss, loss_scale=scaler.get_scale())
    monitor.stop()


if __name__ == "__main__":
    main(CASE, train)
