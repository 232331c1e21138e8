"""Numbers of the run are read, not computed by the model: nothing of it is called, copied or hooked for them."""

from __future__ import annotations

import copy
import io
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.required import require

torch = require("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from probe.pytorch import TrainerMon  # noqa: E402

STEPS = 5
X = torch.ones(3, 4)


class Model(torch.nn.Module):
    """A layer that counts its forwards, and passes over any further argument."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(4, 2)
        self.calls = 0

    def forward(self, x: Any, *_: Any) -> Any:
        self.calls += 1
        return self.fc(x)


class LayerDrop(Model):
    """A layer that draws from the generators of torch and of Python whether it runs."""

    def forward(self, x: Any, *rest: Any) -> Any:
        return super().forward(x, *rest) * (float(torch.rand(())) < 0.5) + random.random()


def holder() -> Any:
    """An object with a tensor that is no leaf, as a batch of graphs has."""
    batch = type("Batch", (), {})()
    batch.nodes = torch.ones(2, requires_grad=True) * 2
    return batch


def numbers() -> Iterator[int]:
    yield from range(3)


def train(monitored: bool, model: Model, *rest: Any, then: Callable[[Any], Any] = lambda model: None) -> list[float]:
    """Train ``model`` with the numbers of the run recorded; return the losses."""
    torch.manual_seed(0)
    random.seed(0)
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.1), list[float]()
    if monitored:
        monitor = TrainerMon({"format": "csv", "run": {"enable": True}, "wg_distribution": True})
        monitor.set_monitor(model, 1, optimizer)
    for _ in range(STEPS):
        loss = model(X, *rest).pow(2).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
        then(model)
    if monitored:
        assert monitor.flush()
        monitor.stop()
        assert monitor.faults == {}
    return losses


@pytest.mark.parametrize("argument", [numbers, threading.Lock, holder], ids=["generator", "lock", "non-leaf"])
def test_an_argument_that_cannot_be_copied_is_passed_on(argument: Callable[[], Any]) -> None:
    """Forwards take any object."""
    model = Model()
    train(True, model, argument())
    assert model.calls == STEPS


def test_a_forward_that_draws_numbers_draws_the_same() -> None:
    """Layers that are dropped at random are the same ones with and without monitor."""
    torch.manual_seed(1)
    model = LayerDrop()
    twin = copy.deepcopy(model)
    assert train(True, model) == train(False, twin)
    assert model.calls == STEPS


def test_a_watched_model_is_copied_and_saved() -> None:
    """``deepcopy`` and ``torch.save`` work while numbers of the run are recorded, and the copy is not watched."""
    copies: list[Any] = []

    def keep(model: Any) -> None:
        copies.append(copy.deepcopy(model))
        torch.save(model, io.BytesIO())

    train(True, Model(), then=keep)
    assert all(torch.isfinite(each(X)).all() for each in copies)


def test_a_strict_dispatch_mode_sees_only_the_models_operators() -> None:
    """A mode that refuses what it does not know is not disturbed."""
    seen: list[set[str]] = []

    class Strict(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen[-1].add(str(func))
            return func(*args, **(kwargs or {}))

    for monitored in (False, True):
        seen.append(set())
        with Strict():
            train(monitored, Model())
    assert seen[0] == seen[1]


def test_no_global_hook_of_modules_is_placed() -> None:
    """torch's hooks of all modules, which the user's own forwards would call, stay as they are."""
    placed: list[int] = []
    train(True, Model(), then=lambda _: placed.append(len(torch.nn.modules.module._global_forward_hooks)))
    assert placed == [0] * STEPS
