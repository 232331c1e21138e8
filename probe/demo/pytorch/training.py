"""Plain training loop on PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.nn import functional

from probe.demo.pytorch.model import Gpt
from probe.demo.recipe import LEARNING_RATE, LONGEST_GRADIENT, Bytes, Size, warm_up


class PytorchTraining:
    """Training with AdamW, warm-up and clipping."""

    def __init__(self, size: Size, seed: int) -> None:
        self.model = Gpt(size, seed)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE)
        self._schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, warm_up)

    def step(self, tokens: Bytes, targets: Bytes, log: Callable[..., None]) -> float:
        logits = self.model(torch.from_numpy(tokens))
        loss = functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(targets).flatten())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), LONGEST_GRADIENT)
        log(loss=loss, grad_norm=norm)
        self.optimizer.step()
        self._schedule.step()
        self.optimizer.zero_grad()
        return loss.item()


@contextmanager
def few_threads() -> Iterator[None]:
    """Limit torch to one thread: on shared cores, a small model takes ten times as long with threads that wait for each
    other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
