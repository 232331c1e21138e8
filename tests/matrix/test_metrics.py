"""Metrics read by the program in the middle of a step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from probe.core.monitor.trainer_mon import Monitor
from tests.matrix.by_hand import TinyNetByHand, numbers
from tests.matrix.harness import Harness, Loop, train_step
from tests.matrix.models import X, tiny_net
from tests.matrix.watching import EVERYTHING, LR, MOMENTUM, inputs, rows_of, watching

OPS = ["min", "max", "mean", "norm"]
Metrics = dict[str, dict[str, float]]


def attached(framework: Harness, **settings: Any) -> Iterator[tuple[Monitor, Loop]]:
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=LR, momentum=MOMENTUM)
    config = EVERYTHING | {"ops": OPS, "format": "api"} | settings
    with watching(framework, config, model, optimizer) as monitor:
        yield monitor, framework.loop(model, optimizer)


@pytest.fixture
def training(framework: Harness) -> Iterator[tuple[Monitor, Loop]]:
    """A monitored TinyNet."""
    yield from attached(framework)


def gradients(*factors: int) -> dict[str, np.ndarray]:
    """The sum of TinyNet's first gradients over micro batches ``X * factor``."""
    each = [TinyNetByHand(LR, MOMENTUM).micro_batch(X * factor)[2] for factor in factors]
    return {name: sum(gradient[name] for gradient in each) for name in each[0]}


def assert_metrics(found: Metrics, arrays: dict[str, np.ndarray], tag: str) -> None:
    """``found`` has exactly these arrays' numbers, under ``tag`` with the name put in."""
    expected = {tag.format(name): {op: numbers(array)[op] for op in OPS} for name, array in arrays.items()}
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, rel=1e-5, abs=1e-6), name


UNREDUCED, REDUCED = "0:{}/rank0/pre_grad", "0:{}/rank0/post_grad"


def test_nothing_was_seen_yet(training: tuple[Monitor, Loop]) -> None:
    """Before the first step there is nothing."""
    monitor, _ = training
    assert monitor.generate_wgrad_metrics() == monitor.generate_xy_metrics() == ({}, {})


def test_unreduced_gradients_after_a_backward(framework: Harness, training: tuple[Monitor, Loop]) -> None:
    """Before the update, the unreduced gradients of this step are known."""
    monitor, loop = training
    loop.micro_batch(*inputs(framework))
    assert_metrics(monitor.generate_wgrad_metrics()[1], gradients(1), UNREDUCED)


def test_unreduced_gradients_after_several_backwards(framework: Harness, training: tuple[Monitor, Loop]) -> None:
    """With several micro batches it is their total so far."""
    monitor, loop = training
    for micro_batch in inputs(framework, 2):
        loop.micro_batch(micro_batch)
    assert_metrics(monitor.generate_wgrad_metrics()[1], gradients(1, 2), UNREDUCED)


def test_own_gradients_of_each_micro_batch(framework: Harness) -> None:
    """With monitor_mbs_grad each micro batch has its own, known as soon as its backward is over."""
    for monitor, loop in attached(framework, monitor_mbs_grad=True):
        for micro_step, micro_batch in enumerate(inputs(framework, 3)):
            loop.micro_batch(micro_batch)
            found = monitor.generate_wgrad_metrics()[1]
            of_last = {tag: values for tag, values in found.items() if f":{micro_step}/rank0" in tag}
            assert_metrics(of_last, gradients(micro_step + 1), f"0:{{}}:{micro_step}/rank0/pre_grad")
        assert len(found) == 9
        loop.update()


def test_reduced_gradients_before_the_update(framework: Harness, training: tuple[Monitor, Loop]) -> None:
    """They are those that the optimizer would get now."""
    monitor, loop = training
    for count, micro_batch in enumerate(inputs(framework, 2), 1):
        loop.micro_batch(micro_batch)
        assert_metrics(monitor.generate_wgrad_metrics()[0], gradients(*range(1, count + 1)), REDUCED)


def test_gradients_after_the_update(framework: Harness, training: tuple[Monitor, Loop]) -> None:
    """Between the end of a step and the next, the step that ended is given."""
    monitor, loop = training
    train_step(loop, *inputs(framework, 2))
    reduced, unreduced = monitor.generate_wgrad_metrics()
    assert_metrics(reduced, gradients(1, 2), REDUCED)
    assert_metrics(unreduced, gradients(1, 2), UNREDUCED)


def test_activations_in_the_middle_of_a_step(framework: Harness, training: tuple[Monitor, Loop]) -> None:
    """Inputs, outputs and their gradients of the micro batches so far."""
    monitor, loop = training
    net, values, gradients_ = TinyNetByHand(LR, MOMENTUM), {}, {}
    for micro_step, micro_batch in enumerate(inputs(framework, 2)):
        loop.micro_batch(micro_batch)
        of_values, of_gradients, _ = net.micro_batch(X * (micro_step + 1))
        values |= {f"{name}:{micro_step}": array for name, array in of_values.items()}
        gradients_ |= {f"{name}:{micro_step}": array for name, array in of_gradients.items()}
        actv, actv_grad = monitor.generate_xy_metrics()
        assert_metrics(actv, values, "0:{}/rank0/actv")
        assert_metrics(actv_grad, gradients_, "0:{}/rank0/actv_grad")
    loop.update()
    assert_metrics(monitor.generate_xy_metrics()[1], gradients_, "0:{}/rank0/actv_grad")


def test_asking_does_not_change_what_is_written(framework: Harness) -> None:
    """A step that was looked at in its middle is written like any other."""
    written = []
    for asks in (False, True):
        for monitor, loop in attached(framework, format="csv"):
            for _ in range(2):
                for micro_batch in inputs(framework, 2):
                    loop.micro_batch(micro_batch)
                    if asks:
                        assert all(monitor.generate_xy_metrics())
                        monitor.generate_wgrad_metrics()
                loop.update()
        written.append(rows_of(monitor))
    assert written[0] == written[1]
    assert written[0]


def test_steps_that_are_not_sampled_have_nothing(framework: Harness) -> None:
    """After a step that was not sampled there is nothing to give, nor after the end."""
    for monitor, loop in attached(framework, step_interval=2):
        found = []
        for _ in range(3):
            train_step(loop, *inputs(framework))
            found.append(bool(monitor.generate_wgrad_metrics()[0]))
        assert found == [True, False, True]
    assert monitor.generate_wgrad_metrics() == monitor.generate_xy_metrics() == ({}, {})
