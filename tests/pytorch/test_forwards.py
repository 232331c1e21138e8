"""Forwards that fail and are tried again, as when memory runs out."""

from __future__ import annotations

import copy
import gc
import weakref
from contextlib import suppress
from typing import Any

import pytest

from tests.pytorch.watching import watch
from tests.required import require

torch = require("torch")


class Kept(torch.autograd.Function):
    """Identity that keeps a tensor for its backward; ``alive`` has a reference to each."""

    alive: list[weakref.ref[Any]] = []  # noqa: RUF012 - of the process

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.kept = torch.ones(4)
        Kept.alive.append(weakref.ref(ctx.kept))
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient


class Layer(torch.nn.Module):
    """A layer whose graph keeps a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)

    def forward(self, x: Any) -> Any:
        return Kept.apply(self.fc(x))


class Short(torch.nn.Module):
    """A layer for which memory does not suffice as long as ``error`` is set."""

    error: type[BaseException] | None = None

    def forward(self, x: Any) -> Any:
        if self.error is not None:
            raise self.error
        return x


def living() -> int:
    gc.collect()
    return sum(kept() is not None for kept in Kept.alive)


@pytest.mark.parametrize("compiled", ["skip", "record"])
@pytest.mark.parametrize("error", [torch.OutOfMemoryError, KeyboardInterrupt])
def test_the_graph_of_a_failed_forward_is_gone(error: type[BaseException], compiled: str) -> None:
    """After a forward that raised, its graph is freed before the retry begins its layers; where the framework calls no
    hook at the end, when the retry begins."""
    Kept.alive.clear()
    short = Short()
    model = torch.nn.Sequential(Layer(), Layer(), torch.nn.Sequential(Layer(), short))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = watch(model, optimizer, mv_distribution=False, compiled=compiled)
    at_once = compiled == "skip" and error is not KeyboardInterrupt
    for _ in range(2):
        short.error = error
        with suppress(error):
            model(torch.ones(3, 2))
        assert not at_once or living() == 0
        assert living() <= 3, "not of two failed forwards"
    short.error = None
    loss = model(torch.ones(3, 2)).sum()
    assert living() == 3, "those of this forward"
    loss.backward()
    optimizer.step()
    monitor.stop()
    assert monitor.faults == {}


def test_a_copy_made_after_a_failed_forward() -> None:
    """A model whose forward failed can be copied, and the copy is not watched."""
    short = Short()
    model = torch.nn.Sequential(Layer(), short)
    monitor = watch(model, torch.optim.SGD(model.parameters(), lr=0.1), mv_distribution=False)
    short.error = RuntimeError
    with suppress(RuntimeError):
        model(torch.ones(3, 2))
    short.error = None
    copy.deepcopy(model)(torch.ones(3, 2)).sum().backward()
    monitor.stop()
    assert monitor.faults == {}
