"""stop() while torch goes through the hooks of a module, a parameter or an optimizer; and models that are very deep."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.pytorch.toys import TinyNet, X
from tests.pytorch.watching import watch
from tests.required import require

torch = require("torch")

Stop = Callable[[], None]


def from_a_forward_pre_hook(model: Any, optimizer: Any, stop: Stop) -> Any:
    return model.fc2.register_forward_pre_hook(lambda *_: stop())


def from_a_forward_hook(model: Any, optimizer: Any, stop: Stop) -> Any:
    return model.fc2.register_forward_hook(lambda *_: stop())


def from_a_gradient_hook(model: Any, optimizer: Any, stop: Stop) -> Any:
    return model.fc2.weight.register_hook(lambda _: stop())


def from_an_accumulation_hook(model: Any, optimizer: Any, stop: Stop) -> Any:
    return model.fc.weight.register_post_accumulate_grad_hook(lambda _: stop())


def before_the_update(model: Any, optimizer: Any, stop: Stop) -> Any:
    return optimizer.register_step_pre_hook(lambda *_: stop())


def after_the_update(model: Any, optimizer: Any, stop: Stop) -> Any:
    return optimizer.register_step_post_hook(lambda *_: stop())


MOMENTS = [
    from_a_forward_pre_hook,
    from_a_forward_hook,
    from_a_gradient_hook,
    from_an_accumulation_hook,
    before_the_update,
    after_the_update,
]


def by_a_signal(stop: Stop) -> None:
    """Has a handler call ``stop``, at once."""
    before = signal.signal(signal.SIGUSR2, lambda *_: stop())
    try:
        signal.raise_signal(signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)


def on_another_thread(stop: Stop) -> None:
    """Calls ``stop`` on another thread, and waits for it."""
    thread = threading.Thread(target=stop)
    thread.start()
    thread.join()


def hooks_of(model: Any, optimizer: Any) -> list[dict[str, int]]:
    """How many hooks each object has."""
    objects = [*model.modules(), *model.parameters(), optimizer]
    found = [{key: len(value) for key, value in vars(each).items() if "hooks" in key and value} for each in objects]
    return [*found, {"gradients": sum(bool(each._backward_hooks) for each in model.parameters())}]


@pytest.mark.parametrize("way", [lambda stop: stop(), by_a_signal, on_another_thread], ids=["call", "signal", "thread"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_stop_while_hooks_are_called(moment: Callable[..., Any], way: Callable[[Stop], None]) -> None:
    """A hook of the user's that comes before ours stops the monitor: training goes on as if there were none, and after
    another step no hook of ours is left."""
    models = [TinyNet(), TinyNet()]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    asked: list[Stop] = []
    handle = moment(models[0], optimizers[0], lambda: way(asked.pop()) if asked else None)
    before = hooks_of(models[0], optimizers[0])
    monitor = watch(models[0], optimizers[0])
    for step in range(4):
        if step == 1:
            asked.append(monitor.stop)
        for model, optimizer in zip(models, optimizers, strict=True):
            model(X).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert not asked
    assert hooks_of(models[0], optimizers[0]) == before
    handle.remove()
    assert monitor.faults == {}
    assert monitor.step == 1 + (moment is after_the_update) * 0
    assert all(torch.equal(a, b) for a, b in zip(*(model.parameters() for model in models), strict=True))
