"""stop() while MindSpore goes through the hooks of a cell, a parameter or an optimizer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.matrix import mindspore_harness as framework
from tests.matrix.harness import train_step
from tests.matrix.models import tiny_net
from tests.matrix.watching import EVERYTHING, LR, MOMENTUM, inputs

Stop = Callable[[], None]
MOMENTS: dict[str, Callable[[Any, Any, Callable[..., None]], Any]] = {
    "before a cell": lambda model, _, stop: model.fc2.register_forward_pre_hook(stop),
    "after a cell": lambda model, _, stop: model.fc2.register_forward_hook(stop),
    "before the whole model": lambda model, _, stop: model.register_forward_pre_hook(stop),
    "gradient": lambda model, _, stop: model.fc2.weight.register_hook(stop),
    "before the update": lambda _, optimizer, stop: optimizer.register_forward_pre_hook(stop),
    "after the update": lambda _, optimizer, stop: optimizer.register_forward_hook(stop),
}


def on_another_thread(stop: Stop) -> None:
    """Calls ``stop`` on another thread, and waits for it."""
    thread = threading.Thread(target=stop)
    thread.start()
    thread.join()


@pytest.mark.parametrize("way", [lambda stop: stop(), on_another_thread], ids=["call", "thread"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_stop_while_hooks_are_called(moment: str, way: Callable[[Stop], None]) -> None:
    """A hook of the user's that comes before ours stops the monitor: training goes on as if there were none, and after
    two more steps no hook of ours is left."""
    models = [tiny_net(framework), tiny_net(framework)]
    optimizers = [framework.optimizer("momentum", model, lr=LR / 8, momentum=MOMENTUM) for model in models]
    loops = [framework.loop(*pair) for pair in zip(models, optimizers, strict=True)]
    asked: list[Stop] = []

    def come(*_: Any) -> None:
        if asked:
            way(asked.pop())

    MOMENTS[moment](models[0], optimizers[0], come)
    before = framework.picture([models[0]], [optimizers[0]])["hooks"]
    monitor = framework.TrainerMon(EVERYTHING)
    monitor.set_monitor(models[0], 1, optimizers[0])
    for step in range(4):
        if step == 1:
            asked.append(monitor.stop)
        for loop in loops:
            train_step(loop, *inputs(framework, 2))
    assert not asked
    assert framework.picture([models[0]], [optimizers[0]])["hooks"] == before
    assert monitor.faults == {}
    weights = [{name: array.tobytes() for name, array in framework.weights(model).items()} for model in models]
    assert weights[0] == weights[1]
