"""Every signal of real training steps, against the formulas."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.matrix.by_hand import TinyNetByHand
from tests.matrix.harness import Harness, train_step
from tests.matrix.models import X, product, tiny_net
from tests.matrix.watching import (
    EVERYTHING,
    GRADIENTS,
    LR,
    MOMENTUM,
    assert_rows,
    inputs,
    only,
    rows_of,
    train_tiny,
    watching,
)
from tests.tables import Row, Rows

SIGNALS = ("actv", "actv_grad", "grad_unreduced", "grad_reduced", "param_origin", "param_updated", "momentum_buffer")


def by_hand(micro_batches: tuple[int, ...], each: bool | str, first: int = 0) -> dict[Row, np.ndarray]:
    """Rows of a training of TinyNet; ``micro_batches`` has the number of each step."""
    net = TinyNetByHand(LR, MOMENTUM)
    rows = {}
    for step, count in enumerate(micro_batches, first):
        rows.update(net.step(step, [X * (number + 1) for number in range(count)], each))
    return rows


def after_the_first_update(rows: Rows) -> Rows:
    """Without the state before it, which not every framework has."""
    return {row: values for row, values in rows.items() if row.signal != "momentum_buffer" or row.step}


@functools.cache
def watched(framework: Harness, micro_batches: tuple[int, ...]) -> Rows:
    """All rows of a training of TinyNet, trained once for all tests that look at it."""
    _, rows = train_tiny(framework, EVERYTHING, micro_batches)
    return after_the_first_update(rows)


@pytest.mark.parametrize("signal", SIGNALS)
def test_plain_steps(framework: Harness, signal: str) -> None:
    """Three steps: each signal has exactly its rows, with all their numbers."""
    assert_rows(watched(framework, (1, 1, 1)), by_hand((1, 1, 1), False), signal)


@pytest.mark.parametrize("signal", ["actv", "actv_grad", "grad_unreduced", "grad_reduced", "momentum_buffer"])
@pytest.mark.parametrize("micro_batches", [(2, 2), (3, 3), (3, 3, 1, 2)], ids=["two", "three", "fewer at the end"])
def test_accumulation(framework: Harness, signal: str, micro_batches: tuple[int, ...]) -> None:
    """Activations are distinguished by micro batch, gradients are the total; an incomplete step shifts nothing."""
    assert_rows(watched(framework, micro_batches), by_hand(micro_batches, False), signal)


@pytest.mark.parametrize("micro_batches", [(1,), (2, 2), (3, 1, 3)], ids=["one", "two", "fewer in between"])
def test_gradients_of_each_micro_batch(framework: Harness, micro_batches: tuple[int, ...]) -> None:
    """With monitor_mbs_grad an unreduced gradient is that micro batch's own, a reduced one the total."""
    _, rows = train_tiny(framework, GRADIENTS | {"monitor_mbs_grad": True}, micro_batches)
    assert_rows(rows, only(by_hand(micro_batches, True), "grad_unreduced", "grad_reduced"))


@pytest.mark.needs("running sums")
def test_the_running_sum_of_micro_batches(framework: Harness) -> None:
    """With monitor_mbs_grad "accumulated" an unreduced gradient is the sum so far."""
    _, rows = train_tiny(framework, GRADIENTS | {"monitor_mbs_grad": "accumulated"}, (3, 2))
    assert_rows(rows, only(by_hand((3, 2), "accumulated"), "grad_unreduced", "grad_reduced"))


@pytest.mark.lacks("running sums")
def test_a_running_sum_that_is_not_kept_is_refused(framework: Harness) -> None:
    """If no object holds gradients between micro batches, configuring their running sum is an error."""
    with pytest.raises(ValueError, match=r"monitor_mbs_grad.*accumulated"):
        train_tiny(framework, GRADIENTS | {"monitor_mbs_grad": "accumulated"}, (2,))


def test_state_begins_with_the_first_update(framework: Harness) -> None:
    """State is read before the update, so that the first step has none."""
    _, rows = train_tiny(framework, EVERYTHING, (1, 1))
    assert {row.step for row in rows if row.signal == "momentum_buffer"} == {1}


@pytest.mark.needs("adam")
def test_the_moments_of_adam(framework: Harness) -> None:
    """``exp_avg`` and ``exp_avg_sq`` under these names, as the paper has them (Kingma and Ba, 2015)."""
    beta1, beta2 = 0.5, 0.75
    model = product(framework, np.zeros(3))
    optimizer = framework.optimizer("adam", model, lr=0.125, beta1=beta1, beta2=beta2)
    loop = framework.loop(model, optimizer)
    first, second = np.zeros(3), np.zeros(3)
    expected = {}
    with watching(framework, EVERYTHING | {"xy_distribution": False}, model, optimizer) as monitor:
        for step in range(4):
            gradient = np.array([1.0, -2.0, 4.0]) * (step + 1)
            expected |= {Row("exp_avg", step, "w"): first, Row("exp_avg_sq", step, "w"): second}
            train_step(loop, framework.tensor(gradient))
            first = beta1 * first + (1 - beta1) * gradient
            second = beta2 * second + (1 - beta2) * gradient**2
    rows = {row: values for row, values in rows_of(monitor).items() if row.step}
    assert_rows(rows, {row: array for row, array in expected.items() if row.step}, "exp_avg", "exp_avg_sq")
    kinds = {row.signal for row in rows} - {"param_origin", "param_updated", "grad_reduced", "grad_unreduced"}
    assert kinds == {"exp_avg", "exp_avg_sq"}, "and no other state"


@pytest.mark.needs("sgd")
def test_an_optimizer_without_state(framework: Harness) -> None:
    """Plain gradient descent keeps nothing, and nothing is shown of it."""
    model = tiny_net(framework)
    optimizer = framework.optimizer("sgd", model, lr=LR)
    loop = framework.loop(model, optimizer)
    with watching(framework, EVERYTHING, model, optimizer) as monitor:
        for _ in range(2):
            train_step(loop, *inputs(framework))
    assert {row.signal for row in rows_of(monitor)} == set(SIGNALS) - {"momentum_buffer"}


@pytest.mark.needs("idioms")
def test_every_idiom_of_a_training_step(framework: Harness) -> None:
    """However the framework's users write a step, the rows are the same."""
    for idiom, train in framework.IDIOMS.items():
        model = tiny_net(framework)
        optimizer = framework.optimizer("momentum", model, lr=LR, momentum=MOMENTUM)
        with watching(framework, EVERYTHING, model, optimizer) as monitor:
            for _ in range(2):
                train(model, optimizer, framework.tensor(X))
        assert_rows(after_the_first_update(rows_of(monitor)), by_hand((1, 1), False), *SIGNALS)
        assert rows_of(monitor), idiom


def test_evaluation_is_no_training_data(framework: Harness) -> None:
    """Forwards for evaluation, before, between and within steps, have no rows and count nothing."""
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=LR, momentum=MOMENTUM)
    loop, strange = framework.loop(model, optimizer), framework.tensor(100 * X)
    with watching(framework, EVERYTHING, model, optimizer) as monitor:
        for _ in range(2):
            framework.evaluate(model, strange)
            for micro_batch in inputs(framework, 2):
                loop.micro_batch(micro_batch)
                framework.evaluate(model, strange)
            loop.update()
    assert_rows(after_the_first_update(rows_of(monitor)), by_hand((2, 2), False))
