"""Calls that are training steps and micro batches, and the tensors that are read in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from tests.mindspore.processes import queued
from tests.mindspore.toys import (
    Deep,
    TinyNet,
    X,
    gradients,
    hooks,
    ms,
    nn,
    one_step,
    rows_of,
    tensor,
    watch,
    weights,
    with_input_gradients,
)
from tests.tables import Row

PACKAGE = Path(probe.__file__).parent
GRADIENT_NORMS = {"fc.weight": 8**0.5, "fc.bias": 6**0.5, "fc2.weight": 58.5**0.5}
"""Of TinyNet's first step, worked out on paper."""


def norm(rows: Any, signal: str, step: int, name: str, micro_step: int = 0) -> float:
    return float(rows[Row(signal, step, name, micro_step)]["norm"])


@with_input_gradients
def test_training_by_value_and_grad() -> None:
    net = TinyNet()
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    monitor = watch(net, optimizer)
    one_step(net, optimizer)
    rows = rows_of(monitor)
    for name, expected in GRADIENT_NORMS.items():
        assert norm(rows, "grad_unreduced", 0, name) == pytest.approx(expected, rel=1e-6)
        assert norm(rows, "grad_reduced", 0, name) == pytest.approx(expected, rel=1e-6)
    assert norm(rows, "param_updated", 0, "fc2.weight") == pytest.approx(6.385**0.5, rel=1e-5)
    assert norm(rows, "actv", 0, "fc.output") == pytest.approx(90**0.5, rel=1e-6)
    assert norm(rows, "actv_grad", 0, "relu.input") == pytest.approx(6**0.5, rel=1e-6)
    assert Row("actv_grad", 0, "fc.input") not in rows  # nothing asked for the gradient of the data


def test_training_by_a_one_step_cell() -> None:
    net = Deep()
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    monitor = watch(net, optimizer)
    train = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), optimizer).set_train()
    for _ in range(2):
        train(tensor(X), tensor([[1], [0]]))
    rows = rows_of(monitor)
    assert {row.step for row in rows} == {0, 1}
    assert {row.micro_step for row in rows} == {0}
    for name in ("stem.weight", "head.bias"):
        assert norm(rows, "momentum_buffer", 1, name) == pytest.approx(norm(rows, "grad_reduced", 0, name), rel=1e-6)


def test_training_and_evaluation_by_model() -> None:
    net = Deep()
    optimizer = nn.Adam(net.trainable_params(), 0.1)
    monitor = watch(net, optimizer)
    model = ms.train.Model(net, nn.MSELoss(), optimizer, metrics={"mse"})
    data = ms.dataset.NumpySlicesDataset((X, np.array([[1.0], [0.0]], np.float32)), shuffle=False).batch(1)
    model.train(1, data, dataset_sink_mode=False)
    before = monitor.step
    model.eval(data, dataset_sink_mode=False)
    assert monitor.step == before == 2
    rows = rows_of(monitor)
    assert {row.step for row in rows} == {0, 1}, "evaluation gives no row"
    assert norm(rows, "exp_avg", 1, "head.weight") == pytest.approx(
        0.1 * norm(rows, "grad_reduced", 0, "head.weight"), rel=1e-4
    )


def test_the_sum_of_micro_batches_is_what_the_optimizer_gets() -> None:
    net = TinyNet()
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    monitor = watch(net, optimizer)
    one_step(net, optimizer, micro_batches=2)
    one_step(net, optimizer)
    rows = rows_of(monitor)
    assert norm(rows, "grad_unreduced", 0, "fc.bias") == pytest.approx(2 * GRADIENT_NORMS["fc.bias"], rel=1e-6)
    assert norm(rows, "grad_reduced", 0, "fc.bias") == pytest.approx(2 * GRADIENT_NORMS["fc.bias"], rel=1e-6)
    assert {row.micro_step for row in rows if row.signal == "actv" and row.step == 0} == {0, 1}
    assert {row.micro_step for row in rows if row.step == 1} == {0}
    assert norm(rows, "grad_unreduced", 1, "fc2.weight") == pytest.approx(norm(rows, "grad_reduced", 1, "fc2.weight"))


def test_between_micro_batches_the_sum_is_not_known() -> None:
    net = TinyNet()
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    monitor = watch(net, optimizer)
    gradients(net)
    reduced, unreduced = monitor.generate_wgrad_metrics()
    assert reduced == {}
    assert unreduced["0:fc.bias/rank0/pre_grad"]["norm"] == pytest.approx(GRADIENT_NORMS["fc.bias"], rel=1e-6)
    total = [2 * gradient for gradient in gradients(net)]
    assert monitor.generate_wgrad_metrics() == ({}, {})
    optimizer(tuple(total))
    _, unreduced = monitor.generate_wgrad_metrics()
    assert unreduced["0:fc.bias/rank0/pre_grad"]["norm"] == pytest.approx(2 * GRADIENT_NORMS["fc.bias"], rel=1e-6)
    assert norm(rows_of(monitor), "grad_unreduced", 0, "fc.bias") == pytest.approx(2 * GRADIENT_NORMS["fc.bias"])


def test_each_micro_batch_of_its_own() -> None:
    net = TinyNet()
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    monitor = watch(net, optimizer, monitor_mbs_grad=True)
    one_step(net, optimizer, micro_batches=2)
    rows = rows_of(monitor)
    first, second = (norm(rows, "grad_unreduced", 0, "fc2.weight", micro_step) for micro_step in (0, 1))
    assert first == pytest.approx(GRADIENT_NORMS["fc2.weight"], rel=1e-6)
    assert second == pytest.approx(240.5**0.5, rel=1e-6)


class Noise(nn.Cell):
    """Drops half of what comes. (``nn.Dropout`` on a CPU does not repeat itself, with or without a monitor.)"""

    def construct(self, x: Any) -> Any:
        return x * (ms.ops.rand(x.shape) > 0.5)


def test_a_plain_forward_is_no_training_data() -> None:
    net = TinyNet()
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    monitor = watch(net, optimizer)
    net(tensor(X * 100))
    grads = gradients(net)
    net(tensor(X * 100))
    optimizer(grads)
    net(tensor(X * 100))
    rows = rows_of(monitor)
    assert max(row.micro_step for row in rows) == 0
    assert norm(rows, "actv", 0, "fc.output") == pytest.approx(90**0.5, rel=1e-6)


def test_a_recomputed_cell_gives_the_same_rows() -> None:
    tables = []
    for recomputed in (False, True):
        net = Deep()
        if recomputed:
            net.body.recompute()
        optimizer = nn.SGD(net.trainable_params(), 0.1)
        monitor = watch(net, optimizer)
        one_step(net, optimizer)
        tables.append(rows_of(monitor))
    plain, recomputed_rows = tables
    assert recomputed_rows == plain


def test_collecting_ends_by_itself() -> None:
    net = Deep()
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    monitor = watch(net, optimizer, collect_times=2)
    for _ in range(4):
        one_step(net, optimizer)
    assert hooks(net, optimizer) == 0
    assert not monitor.monitoring
    assert {row.step for row in rows_of(monitor)} == {0, 1}


@pytest.mark.parametrize("make", [lambda p: nn.Adam(p, 0.01), lambda p: nn.SGD(p, 0.01, momentum=0.9)])
def test_training_is_not_disturbed(make: Any) -> None:
    trained = []
    for watched in (False, True):
        ms.set_seed(7)
        net = nn.SequentialCell(Deep(), Noise())
        optimizer = make(net.trainable_params())
        net.set_train()
        monitor = watch(net, optimizer, monitor_mbs_grad=True) if watched else None
        for _ in range(3):
            one_step(net, optimizer, micro_batches=2)
        drawn_next = ms.ops.rand((4,)).asnumpy().tobytes()
        trained.append((weights(net), drawn_next))
        if monitor is not None:
            assert rows_of(monitor)
    assert trained[0] == trained[1]


def failed_training() -> int:
    """Train with an operator without a kernel; return the number of hooks that are left."""
    net = TinyNet()
    optimizer = ms.mint.optim.AdamW(net.trainable_params(), lr=0.1)
    monitor = watch(net, optimizer)
    with pytest.raises(RuntimeError, match="AdamW"):
        one_step(net, optimizer)
    monitor.stop()
    return hooks(net, optimizer)


def test_a_failure_of_training_itself_is_raised_where_it_would_be(tmp_path: Path) -> None:
    """An operator without a kernel fails at the next read, once: the monitor's read must not swallow that."""
    assert queued(failed_training, tmp_path) == 0


def test_what_fails_before_a_step_is_counted_and_does_not_reach_training() -> None:
    net = TinyNet()
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    monitor = watch(net, optimizer)
    grads = gradients(net)
    with pytest.raises(Exception, match=r".*") as raised:
        optimizer(object())
    ours = [frame.path for frame in raised.traceback[-3:] if Path(frame.path).is_relative_to(PACKAGE)]
    assert ours == [], "MindSpore's own refusal, not ours"
    optimizer(grads)
    monitor.stop()
    assert list(monitor.faults) == ["gradients given to the optimizer: TypeError"]
