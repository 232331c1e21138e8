"""Graph compilation: refused where no hook runs, left alone where it is part of training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

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


class Compiled(nn.Cell):
    """A cell that is compiled with what is inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Deep()

    @ms.jit
    def construct(self, x: Any) -> Any:
        return self.inner(x)


@pytest.mark.usefixtures("graph_mode")
def test_graph_mode_is_refused_with_what_to_do() -> None:
    net = TinyNet()
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    with pytest.raises(ValueError, match=r"GRAPH_MODE.*set_context\(mode=mindspore.PYNATIVE_MODE\)"):
        watch(net, optimizer)
    assert hooks(net, optimizer) == 0


def test_a_compiled_cell_is_refused_for_activations_alone() -> None:
    net = Compiled()
    optimizer = nn.Adam(net.trainable_params(), 0.1)
    with pytest.raises(ValueError, match=r"cell .. is compiled by mindspore\.jit.*xy_distribution: false"):
        watch(net, optimizer)
    monitor = watch(net, optimizer, xy_distribution=False)
    one_step(net, optimizer)
    rows = rows_of(monitor)
    assert {row.signal for row in rows} == {
        "grad_unreduced", "grad_reduced", "param_origin", "param_updated", "exp_avg", "exp_avg_sq",
    }  # fmt: skip


class Inner(nn.Cell):
    """A cell between others that is compiled and has none inside."""

    @ms.jit
    def construct(self, x: Any) -> Any:
        return ms.ops.tanh(x) * 2


class Around(nn.Cell):
    """Model that passes the output of a watched cell to a compiled one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Dense(2, 3), Inner(), nn.Dense(3, 1)

    def construct(self, x: Any) -> Any:
        return self.last(self.inner(self.first(x))).sum()


@with_input_gradients
def test_a_compiled_cell_is_given_what_a_watched_one_gives() -> None:
    """Gradients of its input and output are recorded, and training is to the last bit what it is without."""
    trained, starts = [], [p.asnumpy().copy() for p in Around().trainable_params()]
    for watched in (False, True):
        net = Around()
        for parameter, start in zip(net.trainable_params(), starts, strict=True):
            parameter.set_data(ms.Tensor(start))
        optimizer = nn.SGD(net.trainable_params(), 0.1)
        monitor = watch(net, optimizer) if watched else None
        for _ in range(2):
            _, grads = ms.value_and_grad(net, None, net.trainable_params())(tensor(X))
            optimizer(grads)
        trained.append(weights(net))
    assert trained[0] == trained[1]
    rows = rows_of(monitor)
    names = {row.name for row in rows if row.signal == "actv_grad" and row.step == 1}
    assert {"first.output", "inner.input", "inner.output", "last.input"} <= names
    inputs, outputs = (
        next(rows[row] for row in rows if row[:3] == ("actv_grad", 0, name)) for name in ("inner.input", "first.output")
    )
    assert inputs == outputs


def test_hooks_do_not_break_a_function_that_compiles_the_model() -> None:
    """A cell is compiled by mindspore.jit with the hooks on it."""
    trained = []
    for watched in (False, True):
        net = Deep()
        optimizer = nn.SGD(net.trainable_params(), 0.1)
        monitor = watch(net, optimizer) if watched else None

        @ms.jit
        def forward(x: Any, net: Any = net) -> Any:
            return net(x).sum()

        losses = []
        for _ in range(3):
            loss, grads = ms.value_and_grad(forward, None, net.trainable_params())(tensor(X))
            optimizer(grads)
            losses.append(loss.asnumpy().tobytes())
        trained.append((losses, weights(net)))
        if monitor is not None:
            monitor.stop()
            assert monitor.step == 3
            assert monitor.faults == {"activations: steps in which no watched module was seen to run": 3}
            assert hooks(net, optimizer) == 0
    assert trained[0] == trained[1]


def test_a_model_watched_and_compiled_by_turns() -> None:
    net = Deep()
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    monitor = watch(net, optimizer)

    @ms.jit
    def evaluate(x: Any) -> Any:
        return net(x)

    for _ in range(2):
        expected = net(tensor(X)).asnumpy()
        assert np.allclose(evaluate(tensor(X)).asnumpy(), expected, rtol=1e-5)
        optimizer(gradients(net))
    rows = rows_of(monitor)
    assert {row.step for row in rows if row.signal == "actv"} == {0, 1}
