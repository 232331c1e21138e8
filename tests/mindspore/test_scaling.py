"""Losses that are scaled: numbers are those of the loss itself if the optimizer has the divisor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.mindspore.toys import Deep, X, ms, nn, rows_of, tensor, watch

STEPS = 3
GRADIENTS = ("grad_unreduced", "grad_reduced", "actv_grad")


def trained(scale: float, kind: Any = nn.Momentum, **settings: Any) -> tuple[dict[Any, dict[str, Any]], list[Any]]:
    """Rows of a training whose losses are multiplied by ``scale``, and the parameters at the end."""
    net = Deep()
    parameters = net.trainable_params()
    own = {"momentum": 0.9} if kind is nn.Momentum else {}
    optimizer = kind(parameters, learning_rate=0.01, loss_scale=scale, **own)
    step = ms.value_and_grad(lambda x: net(x).square().sum() * scale, None, parameters)
    monitor = watch(net, optimizer, **settings)
    for number in range(STEPS):
        optimizer(step(tensor(X * (number + 1)))[1])
    rows = {(row.signal, row.step, row.name): values for row, values in rows_of(monitor).items()}
    return rows, [parameter.asnumpy() for parameter in parameters]


@pytest.mark.parametrize("settings", [{}, {"monitor_mbs_grad": True}])
def test_the_scale_of_an_optimizer_is_divided_out(settings: dict[str, Any]) -> None:
    """Powers of two change no digit: all rows are those of training without a scale."""
    rows, parameters = trained(1024.0, **settings)
    plain, others = trained(1.0, **settings)
    assert all(np.array_equal(one, other) for one, other in zip(parameters, others, strict=True))
    assert rows == plain
    for signal in GRADIENTS:
        assert any(kind == signal and values["norm"] > 0 for (kind, *_), values in rows.items())


def test_a_scale_counts_as_long_as_its_optimizer_is_listened_to() -> None:
    """A monitor of another model, afterwards, knows nothing of it."""
    trained(1024.0)
    plain, _ = trained(1.0)
    with_adam, _ = trained(1.0, nn.Adam)
    first = [key for key in plain if key[0] == "grad_unreduced" and key[1] == 0]
    assert first
    assert all(plain[key] == with_adam[key] for key in first)
