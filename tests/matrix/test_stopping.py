"""stop() at any moment: from a hook of the user's, from another thread, in the middle of a step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.matrix.harness import Harness, Module, train_step
from tests.matrix.models import SQUARE, X, tiny_net
from tests.matrix.watching import EVERYTHING, LR, MOMENTUM, inputs, rows_of


def stopping(framework: Harness, moment: Callable[[], None]) -> Module:
    """A model in whose forward, between two layers, ``moment`` comes."""
    first, second = framework.linear(SQUARE), framework.linear(2 * SQUARE)

    def forward(x: Any) -> Any:
        h = first(x)
        moment()
        return second(h)

    return framework.module(forward, first=first, second=second)


def elsewhere(function: Callable[[], None]) -> None:
    """Calls ``function`` on another thread, and waits for it."""
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


@pytest.mark.parametrize("thread", ["own", "another"])
def test_stop_in_the_middle_of_a_forward(framework: Harness, thread: str) -> None:
    """Training goes on as without a monitor, and when the next steps are over everything is as it was found."""
    moments: list[Callable[[], None]] = []
    model, plain = (stopping(framework, lambda: moments.pop()() if moments else None) for _ in range(2))
    optimizers = [framework.optimizer("momentum", each, lr=LR / 8, momentum=MOMENTUM) for each in (model, plain)]
    loops = [framework.loop(*pair) for pair in zip((model, plain), optimizers, strict=True)]
    monitor = framework.TrainerMon(EVERYTHING)
    for loop in loops:
        train_step(loop, *inputs(framework, 2))
    before = framework.picture([model], [optimizers[0]])
    monitor.set_monitor(model, 1, optimizers[0])
    train_step(loops[0], *inputs(framework, 2))
    moments.append(monitor.stop if thread == "own" else lambda: elsewhere(monitor.stop))
    for _ in range(3):
        train_step(loops[0], *inputs(framework, 2))
    assert not moments
    for _ in range(4):
        train_step(loops[1], *inputs(framework, 2))
    weights = [{name: array.tobytes() for name, array in framework.weights(each).items()} for each in (model, plain)]
    assert weights[0] == weights[1]
    assert monitor.faults == {}
    assert framework.picture([model], [optimizers[0]]) == before


@pytest.mark.parametrize("trains", ["here", "elsewhere"])
def test_stop_while_training_rests_on_another_thread(framework: Harness, trains: str) -> None:
    """The state of a training thread is unknown on another one: hooks stay, without effect, and go when ``stop`` is
    called on it. If it has ended, they go at once."""
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=LR / 8, momentum=MOMENTUM)
    loop = framework.loop(model, optimizer)
    train_step(loop, framework.tensor(X))
    before = framework.picture([model], [optimizer])
    monitor = framework.TrainerMon(EVERYTHING)
    monitor.set_monitor(model, 1, optimizer)
    if trains == "here":
        train_step(loop, framework.tensor(X))
        elsewhere(monitor.stop)
    else:
        elsewhere(lambda: train_step(loop, framework.tensor(X)))
    assert framework.picture([model], [optimizer]) != before
    monitor.stop()
    assert framework.picture([model], [optimizer]) == before
    assert {row.step for row in rows_of(monitor)} == {0}
    assert monitor.faults == {}


def test_a_monitor_that_is_attached_again_in_a_forward(framework: Harness) -> None:
    """Hooks that a stopped run has left do not affect the next one, which sees every step once."""
    moments: list[Callable[[], None]] = []
    model = stopping(framework, lambda: moments.pop()() if moments else None)
    optimizer = framework.optimizer("momentum", model, lr=LR / 8, momentum=MOMENTUM)
    loop = framework.loop(model, optimizer)
    monitor = framework.TrainerMon(EVERYTHING)
    before = framework.picture([model], [optimizer])
    monitor.set_monitor(model, 1, optimizer)
    moments.append(monitor.stop)
    train_step(loop, framework.tensor(X))
    assert not moments
    monitor.set_monitor(model, 1, optimizer)
    for _ in range(2):
        train_step(loop, framework.tensor(X))
    monitor.stop()
    assert framework.picture([model], [optimizer])["hooks"] == before["hooks"]
    rows = rows_of(monitor)
    assert {row.step for row in rows if row.signal == "actv"} == {0, 1}
    assert monitor.faults == {}


class Refusing(Exception):  # noqa: N818 - no error
    """Exception that a module of the user raises when it gets a hook."""


@pytest.mark.parametrize("method", ["register_forward_hook", "register_forward_pre_hook"])
@pytest.mark.needs("idioms")
def test_set_monitor_that_fails_leaves_nothing(
    framework: Harness, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module that refuses one of its hooks: the error reaches the user, and no hook stays anywhere."""
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=LR / 8, momentum=MOMENTUM)
    before = framework.picture([model], [optimizer])

    def refuse(*_: Any, **__: Any) -> None:
        raise Refusing

    monitor = framework.TrainerMon(EVERYTHING)
    with monkeypatch.context() as patched:
        patched.setitem(vars(model.fc2), method, refuse)
        with pytest.raises(Refusing):
            monitor.set_monitor(model, 1, optimizer)
    assert framework.picture([model], [optimizer]) == before
    monitor.set_monitor(model, 1, optimizer)
    train_step(framework.loop(model, optimizer), framework.tensor(np.ones((2, 2))))
    monitor.stop()
    assert monitor.faults == {}
