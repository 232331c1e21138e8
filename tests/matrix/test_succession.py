"""An optimizer that is replaced while training runs is followed; if that is impossible, it is logged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe.core.monitor.trainer_mon import Monitor
from tests.matrix.harness import Harness, Optimizer, train_step
from tests.matrix.models import product, tiny_net
from tests.matrix.watching import EVERYTHING, inputs, rows_of

CONFIG = EVERYTHING | {"alert": {"rules": []}}
pytestmark = pytest.mark.needs("every step")


def sgd(framework: Harness, model: Any, lr: float = 0.125) -> Optimizer:
    return framework.optimizer("momentum", model, lr=lr, momentum=0.5)


def adam(framework: Harness, model: Any) -> Optimizer:
    return framework.optimizer("adam", model, lr=0.125, beta1=0.5, beta2=0.5)


def manifest(monitor: Monitor) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(str(monitor.output_directory)) / "manifest.json").read_text())
    return found


def trained(
    framework: Harness, steps: list[int], make: Callable[[Harness, Any], Optimizer] = sgd
) -> tuple[Monitor, dict[str, bytes]]:
    """A training in which the optimizer is made anew after each of these numbers of steps."""
    model = tiny_net(framework)
    optimizer = sgd(framework, model)
    monitor = framework.TrainerMon(CONFIG)
    monitor.set_monitor(model, 1, optimizer)
    for count in steps:
        loop = framework.loop(model, optimizer)
        for _ in range(count):
            train_step(loop, *inputs(framework))
        optimizer = make(framework, model)
    monitor.stop()
    return monitor, {name: array.tobytes() for name, array in framework.weights(model).items()}


def test_an_optimizer_that_is_made_anew_is_followed(framework: Harness, caplog: pytest.LogCaptureFixture) -> None:
    """Every training step has all its rows, and the manifest names the steps."""
    monitor, _ = trained(framework, [3, 4, 2])
    assert (monitor.step, monitor.faults, caplog.messages) == (9, {}, [])
    assert [change["step"] for change in manifest(monitor)["changes"]] == [3, 7]
    rows = rows_of(monitor)
    for signal in ("actv", "grad_unreduced", "grad_reduced", "param_updated"):
        assert {row.step for row in rows if row.signal == signal} == set(range(9))


def test_an_optimizer_of_another_class_is_followed(framework: Harness, caplog: pytest.LogCaptureFixture) -> None:
    """Every training step is counted and has its rows; of its first one those before and after the update are missing,
    which is counted, logged and in the manifest: it might be a part of the other."""
    monitor, _ = trained(framework, [3, 4], adam)
    assert monitor.step == 7
    assert list(monitor.faults.values()) == [1]
    assert sum("followed" in message for message in caplog.messages) == 1
    assert manifest(monitor)["faults"] == monitor.faults
    assert [change["step"] for change in manifest(monitor)["changes"]] == [3]
    rows = rows_of(monitor)
    steps = {signal: {row.step for row in rows if row.signal == signal} for signal in ("actv", "grad_unreduced")}
    assert steps == {"actv": set(range(7)), "grad_unreduced": set(range(7))}
    for signal in ("grad_reduced", "param_updated"):
        assert {row.step for row in rows if row.signal == signal} == set(range(7)) - {3}


def test_numbers_of_a_new_optimizer(framework: Harness) -> None:
    """The new optimizer's gradients and state are recorded: ``w`` has gradients of 1, 2, 4, ..."""
    model = product(framework, np.zeros(2))
    monitor = framework.TrainerMon(CONFIG | {"xy_distribution": False})
    optimizers = [sgd(framework, model) for _ in range(2)]
    monitor.set_monitor(model, 1, optimizers[0])
    for step in range(6):
        train_step(framework.loop(model, optimizers[step // 2 % 2]), framework.tensor([2.0**step, 0.0]))
    monitor.stop()
    rows = rows_of(monitor)
    gradients = {row.step: values["max"] for row, values in rows.items() if row.signal == "grad_reduced"}
    assert gradients == {0: 1, 1: 2, 2: 4, 3: 8, 4: 16, 5: 32}, "also of the first optimizer, which comes back"
    momenta = {row.step: values["max"] for row, values in rows.items() if row.signal == "momentum_buffer"}
    assert momenta[3] == 4
    assert momenta[4] == 0.5 * 1 + 2
    assert momenta[5] == 0.5 * momenta[4] + 16


def test_training_is_as_without(framework: Harness) -> None:
    """With and without the monitor the weights are the same, to the last bit."""
    model = tiny_net(framework)
    for count in (3, 4):
        loop = framework.loop(model, sgd(framework, model))
        for _ in range(count):
            train_step(loop, *inputs(framework))
    assert trained(framework, [3, 4])[1] == {name: x.tobytes() for name, x in framework.weights(model).items()}


def test_optimizers_of_other_models_are_none_of_ours(framework: Harness) -> None:
    """Another model that trains in the same process, watched or not, changes nothing."""
    models = [tiny_net(framework) for _ in range(3)]
    optimizers = [sgd(framework, model) for model in models]
    monitors = [framework.TrainerMon(CONFIG) for _ in range(2)]
    for monitor, model, optimizer in zip(monitors, models, optimizers, strict=False):
        monitor.set_monitor(model, 1, optimizer)
    for count in range(4):
        for number, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            for _ in range(count if number else 1):
                train_step(framework.loop(model, optimizer), *inputs(framework))
    for monitor in monitors:
        monitor.stop()
    assert [monitor.faults for monitor in monitors] == [{}, {}]
    assert [monitor.step for monitor in monitors] == [4, 6]


def test_an_optimizer_of_some_parameters_is_told_of(framework: Harness, caplog: pytest.LogCaptureFixture) -> None:
    """A new optimizer that trains only a part of the model is logged once, and counted."""
    first, second = product(framework, np.ones(2)), product(framework, np.ones(2))
    model = framework.module(lambda x: framework.add(first(x), second(x)), first=first, second=second)
    monitor = framework.TrainerMon(CONFIG | {"xy_distribution": False})
    optimizer, part = sgd(framework, model), sgd(framework, second)
    monitor.set_monitor(model, 1, optimizer)
    train_step(framework.loop(model, optimizer), framework.tensor([1.0, 2.0]))
    for _ in range(6):
        train_step(framework.loop(second, part), framework.tensor([1.0, 2.0]))
    monitor.stop()
    assert monitor.step == 1
    assert list(monitor.faults.values()) == [4], "from the third on"
    assert sum("set_monitor with it" in message for message in caplog.messages) == 1
    assert manifest(monitor)["faults"] == monitor.faults


def test_a_step_that_never_ends_is_given_up(framework: Harness, caplog: pytest.LogCaptureFixture) -> None:
    """When micro batches come and come without an update, their rows are not kept for ever; the next step is there."""
    model = tiny_net(framework)
    optimizer = sgd(framework, model)
    loop = framework.loop(model, optimizer)
    monitor = framework.TrainerMon(CONFIG)
    monitor.set_monitor(model, 1, optimizer)
    for count in (2, 60, 1):
        train_step(loop, *[framework.tensor(np.zeros((2, 2)))] * count)
    monitor.stop()
    assert list(monitor.faults.values()) == [1]
    assert sum("micro batches without an update" in message for message in caplog.messages) == 1
    assert {row.step for row in rows_of(monitor)} == {0, 2}


def test_stop_takes_the_listeners_away(framework: Harness) -> None:
    """Also those on the optimizer that was followed, and on the class of all optimizers."""
    model = tiny_net(framework)
    old, new = sgd(framework, model), sgd(framework, model)
    for optimizer in (old, new):  # some are complete only then
        train_step(framework.loop(model, optimizer), *inputs(framework))
    before = framework.picture([model], [old, new])
    monitor = framework.TrainerMon(CONFIG)
    monitor.set_monitor(model, 1, old)
    for optimizer in (old, new):
        loop = framework.loop(model, optimizer)
        for _ in range(2):
            train_step(loop, *inputs(framework))
    monitor.stop()
    assert monitor.step == 4
    assert framework.picture([model], [old, new]) == before
