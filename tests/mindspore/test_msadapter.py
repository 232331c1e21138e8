"""A ``torch`` that is MindSpore underneath: its modules, parameters and optimizers are watched like MindSpore's.

Against the contract that tests/mindspore/msadapter.py states: the published packages do not import on this MindSpore.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.mindspore import msadapter
from tests.mindspore.msadapter import CELLS, PLAIN, Torch
from tests.mindspore.toys import X, ms, nn, rows_of, tensor, watch, with_input_gradients
from tests.required import require
from tests.tables import Row, Rows

W, B, W2 = np.array([[1, 2], [3, 4], [-1, -2]]), np.array([0.5, -0.5, 0]), np.array([[1, -1, 2]])
"""Weights of the network, which can be followed on paper."""
PARAMETERS = ["fc.weight", "fc.bias", "fc2.weight"]
LR = 0.1


@pytest.fixture(params=["PLAIN", "CELLS"])
def torch(request: pytest.FixtureRequest) -> Iterator[Torch]:
    """The stand-in of either kind, imported for one test."""
    with msadapter.imported():
        yield getattr(msadapter, request.param)


def tiny_net(torch: Torch) -> Any:
    """Two layers around a ReLU."""

    class TinyNet(torch.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.Linear(W, B)
            self.relu = torch.ReLU()
            self.fc2 = torch.Linear(W2)

        def forward(self, x: Any) -> Any:
            return self.fc2(self.relu(self.fc(x)))

    return TinyNet()


def by_hand(x: np.ndarray) -> dict[str, np.ndarray]:
    """Activations and gradients of one forward and backward of the sum of the outputs, with the first weights."""
    fc = x @ W.T + B
    relu = np.maximum(fc, 0)
    to_output = np.ones((len(x), 1))
    to_relu = to_output @ W2
    to_fc = to_relu * (fc > 0)
    return {
        ".input": x,
        ".output": relu @ W2.T,
        "grad .output": to_output,
        "fc.input": x,
        "fc.output": fc,
        "relu.input": fc,
        "relu.output": relu,
        "fc2.input": relu,
        "fc2.output": relu @ W2.T,
        "grad fc.output": to_fc,
        "grad relu.input": to_fc,
        "grad relu.output": to_relu,
        "grad fc2.input": to_relu,
        "grad fc2.output": to_output,
        "fc.weight": to_fc.T @ x,
        "fc.bias": to_fc.sum(0),
        "fc2.weight": to_output.T @ relu,
    }


def one_step(net: Any, optimizer: Any, micro_batches: int = 1) -> None:
    """One training step as torch's users write it."""
    optimizer.zero_grad()
    for number in range(micro_batches):
        net(tensor(X * (number + 1))).sum().backward()
    optimizer.step()


def assert_row(rows: Rows, row: Row, values: np.ndarray) -> None:
    """The row holds the statistics of ``values``."""
    expected = {
        "min": values.min(),
        "max": values.max(),
        "mean": values.mean(),
        "norm": np.sqrt((values.astype(np.float64) ** 2).sum()),
        "nans": 0,
    }
    assert rows[row] == pytest.approx(expected, rel=1e-5, abs=1e-6), row


def hooks(net: Any, *optimizers: Any) -> int:
    """How many hooks are on modules, parameters and optimizers."""
    own = sum(len(module.forward_pre_hooks) + len(module.forward_hooks) for _, module in net.named_modules())
    cells = [cell for cell in [*(m for _, m in net.named_modules()), *optimizers] if isinstance(cell, nn.Cell)]
    own += sum(len(cell._forward_pre_hook) + len(cell._forward_hook) for cell in cells)
    return own + sum(len(parameter.hooks()) for parameter in net.parameters())


def bits(net: Any) -> list[bytes]:
    """Every bit of the parameters."""
    return [parameter.asnumpy().tobytes() for parameter in net.parameters()]


@with_input_gradients
def test_every_signal_of_a_step(torch: Torch) -> None:
    net = tiny_net(torch)
    optimizer = torch.SGD(net.parameters(), lr=LR)
    monitor = watch(net, optimizer)
    one_step(net, optimizer)
    rows = rows_of(monitor)
    exact = by_hand(X)
    before = dict(zip(PARAMETERS, (W, B, W2), strict=True))
    for name in PARAMETERS:
        assert_row(rows, Row("grad_unreduced", 0, name), exact[name])
        assert_row(rows, Row("grad_reduced", 0, name), exact[name])
        assert_row(rows, Row("param_origin", 0, name), before[name])
        assert_row(rows, Row("param_updated", 0, name), before[name] - LR * exact[name])
    activations = [name for name in exact if name.endswith("put")]
    for name in activations:
        signal = "actv_grad" if name.startswith("grad ") else "actv"
        assert_row(rows, Row(signal, 0, name.removeprefix("grad ")), exact[name])
    assert len(rows) == 4 * len(PARAMETERS) + len(activations)


@with_input_gradients
def test_the_sum_of_two_backwards(torch: Torch) -> None:
    net = tiny_net(torch)
    optimizer = torch.SGD(net.parameters(), lr=LR)
    monitor = watch(net, optimizer)
    one_step(net, optimizer, micro_batches=2)
    w2 = net.fc2.weight.asnumpy().copy()
    one_step(net, optimizer)
    rows = rows_of(monitor)
    first, second = by_hand(X), by_hand(X * 2)
    for name in PARAMETERS:
        assert_row(rows, Row("grad_unreduced", 0, name), first[name] + second[name])
        assert_row(rows, Row("grad_reduced", 0, name), first[name] + second[name])
    assert_row(rows, Row("param_origin", 1, "fc2.weight"), w2)
    assert_row(rows, Row("actv", 0, "fc2.output", 1), second["fc2.output"])
    assert_row(rows, Row("actv_grad", 0, "relu.input", 1), second["grad relu.input"])
    assert {row.micro_step for row in rows if row.step == 1} == {0}


def test_each_micro_batch_of_its_own(torch: Torch) -> None:
    net = tiny_net(torch)
    optimizer = torch.SGD(net.parameters(), lr=LR)
    monitor = watch(net, optimizer, monitor_mbs_grad=True)
    one_step(net, optimizer, micro_batches=2)
    rows = rows_of(monitor)
    first, second = by_hand(X), by_hand(X * 2)
    for name in PARAMETERS:
        assert_row(rows, Row("grad_unreduced", 0, name, 0), first[name])
        assert_row(rows, Row("grad_unreduced", 0, name, 1), second[name])
        assert_row(rows, Row("grad_reduced", 0, name), first[name] + second[name])
    assert len([row for row in rows if row.signal == "grad_unreduced"]) == 2 * len(PARAMETERS)


@pytest.mark.parametrize(
    ("name", "options", "kinds"),
    [
        ("SGD", {"momentum": 0.9}, {"momentum_buffer": lambda g: g}),
        ("Adam", {}, {"exp_avg": lambda g: 0.1 * g, "exp_avg_sq": lambda g: 0.001 * g**2}),
    ],
)
def test_optimizer_state(torch: Torch, name: str, options: dict[str, float], kinds: dict[str, Any]) -> None:
    """Before the second update, it is what the first has made of its gradient."""
    net = tiny_net(torch)
    optimizer = getattr(torch, name)(net.parameters(), lr=0.01, **options)
    monitor = watch(net, optimizer, xy_distribution=False)
    one_step(net, optimizer)
    one_step(net, optimizer)
    rows = rows_of(monitor)
    exact = by_hand(X)
    assert {row.signal for row in rows if row.step == 1} == {
        "grad_unreduced", "grad_reduced", "param_origin", "param_updated", *kinds,
    }  # fmt: skip
    for kind, expected in kinds.items():
        for parameter in PARAMETERS:
            assert_row(rows, Row(kind, 1, parameter), expected(exact[parameter]))


def test_evaluation_gives_no_row(torch: Torch) -> None:
    net = tiny_net(torch)
    optimizer = torch.SGD(net.parameters(), lr=LR)
    monitor = watch(net, optimizer)
    net.eval()
    net(tensor(X * 100))
    net.train()
    with ms._no_grad():
        net(tensor(X * 100))
    one_step(net, optimizer)
    net.eval()
    net(tensor(X * 100))
    rows = rows_of(monitor)
    assert {(row.step, row.micro_step, row.call) for row in rows} == {(0, 0, 0)}
    assert_row(rows, Row("actv", 0, "fc.output"), by_hand(X)["fc.output"])


def test_a_parameter_without_a_gradient_has_no_row(torch: Torch) -> None:
    net = tiny_net(torch)
    net.idle = torch.Linear(W)
    optimizer = torch.SGD(net.parameters(), lr=LR)
    monitor = watch(net, optimizer, xy_distribution=False)
    one_step(net, optimizer)
    rows = rows_of(monitor)
    assert {row.name for row in rows if row.signal.startswith("grad")} == set(PARAMETERS)
    assert {row.name for row in rows if row.signal == "param_origin"} == {*PARAMETERS, "idle.weight"}


def test_keyword_arguments_are_inputs_where_hooks_can_see_them() -> None:
    with msadapter.imported():
        layer = PLAIN.Linear(W, B)
        optimizer = PLAIN.SGD(layer.parameters(), lr=LR)
        monitor = watch(layer, optimizer)
        layer(x=tensor(X)).sum().backward()
        optimizer.step()
        rows = rows_of(monitor)
    place = next(row.name for row in rows if row.signal == "actv" and "input" in row.name)
    assert_row(rows, Row("actv", 0, place), X)


def test_a_closure_gives_the_gradients(torch: Torch) -> None:
    net = tiny_net(torch)
    optimizer = torch.SGD(net.parameters(), lr=LR)
    monitor = watch(net, optimizer)

    def closure() -> Any:
        loss = net(tensor(X)).sum()
        loss.backward()
        return loss

    assert float(optimizer.step(closure=closure)) == by_hand(X)[".output"].sum()
    rows = rows_of(monitor)
    exact = by_hand(X)
    for name in PARAMETERS:
        assert_row(rows, Row("grad_unreduced", 0, name), exact[name])
        assert_row(rows, Row("grad_reduced", 0, name), exact[name])
    assert_row(rows, Row("param_origin", 0, "fc2.weight"), W2)


@pytest.mark.parametrize("evaluations", [1, 3])
def test_a_line_search_is_no_training_data(evaluations: int) -> None:
    """Of several evaluations within a step the first counts."""

    class Searching(PLAIN.SGD):  # type: ignore[misc,name-defined]
        def step(self, closure: Any = None) -> None:
            for _ in range(evaluations):
                closure()
            super().step()

    with msadapter.imported():
        net = tiny_net(PLAIN)
        optimizer = Searching(net.parameters(), lr=LR)
        monitor = watch(net, optimizer)
        factors = iter(range(1, 10))

        def closure() -> None:
            optimizer.zero_grad()
            net(tensor(X * next(factors))).sum().backward()

        optimizer.step(closure)
        rows = rows_of(monitor)
    assert {(row.step, row.micro_step, row.call) for row in rows} == {(0, 0, 0)}
    exact = by_hand(X)
    assert_row(rows, Row("grad_unreduced", 0, "fc2.weight"), exact["fc2.weight"])
    assert_row(rows, Row("grad_reduced", 0, "fc2.weight"), exact["fc2.weight"])
    assert_row(rows, Row("actv", 0, "fc2.output"), exact["fc2.output"])


def test_a_closure_that_is_not_evaluated(torch: Torch) -> None:
    """The step counts, with the gradients that were there."""

    class Ignoring(torch.SGD):  # type: ignore[misc,name-defined]
        def step(self, closure: Any) -> None:
            super().step()

    net = tiny_net(torch)
    optimizer = Ignoring(net.parameters(), lr=LR)
    monitor = watch(net, optimizer)
    net(tensor(X)).sum().backward()
    optimizer.step(lambda: None)
    rows = rows_of(monitor)
    assert {row.step for row in rows} == {0}
    assert_row(rows, Row("grad_reduced", 0, "fc2.weight"), by_hand(X)["fc2.weight"])


def test_collecting_ends_by_itself(torch: Torch) -> None:
    net = tiny_net(torch)
    optimizer = torch.SGD(net.parameters(), lr=LR)
    original = optimizer.step
    monitor = watch(net, optimizer, collect_times=2)
    for _ in range(4):
        one_step(net, optimizer)
    assert hooks(net, optimizer) == 0
    assert optimizer.step == original
    assert not monitor.monitoring
    assert {row.step for row in rows_of(monitor)} == {0, 1}


class Halving(CELLS.SGD):  # type: ignore[misc,name-defined]
    """Its ``step`` is a call, with half of what it was given."""

    def step(self, grads: Any) -> None:
        self(tuple(gradient / 2 for gradient in grads))


@pytest.mark.parametrize(
    ("make", "update", "applied"),
    [
        (CELLS.SGD, lambda optimizer, grads: optimizer.step(grads), 10),
        (CELLS.SGD, lambda optimizer, grads: optimizer.step(grads=grads), 10),
        (CELLS.SGD, lambda optimizer, grads: optimizer(grads), 10),
        (Halving, lambda optimizer, grads: optimizer.step(grads), 5),
    ],
    ids=["step", "keyword", "call", "step calls"],
)
def test_gradients_handed_to_the_optimizer(make: Any, update: Any, applied: float) -> None:
    """MindSpore's way with such an optimizer: a function gives gradients, and the optimizer takes them."""
    with msadapter.imported():
        net = tiny_net(CELLS)
        optimizer = make(net.parameters(), lr=LR)
        monitor = watch(net, optimizer)
        for _ in range(2):
            _, grads = ms.value_and_grad(lambda x: net(x).sum(), None, optimizer.parameters)(tensor(X))
            update(optimizer, tuple(gradient * 10 for gradient in grads))
        rows = rows_of(monitor)
    assert {row.step for row in rows} == {0, 1}
    exact = by_hand(X)
    for name in PARAMETERS:
        assert_row(rows, Row("grad_unreduced", 0, name), exact[name])
        assert_row(rows, Row("grad_reduced", 0, name), exact[name] * 10)
    assert_row(rows, Row("param_origin", 1, "fc2.weight"), W2 - LR * applied * exact["fc2.weight"])
    assert hooks(net, optimizer) == 0


def test_stopping_leaves_nothing_behind(torch: Torch) -> None:
    net = tiny_net(torch)
    optimizer = torch.SGD(net.parameters(), lr=LR)
    one_step(net, optimizer)  # MindSpore's optimizers get attributes as they run
    before = set(vars(optimizer)), optimizer.step, vars(nn.DistributedGradReducer).copy()
    monitor = watch(net, optimizer)
    assert hooks(net, optimizer) > 0
    assert optimizer.step != before[1]
    one_step(net, optimizer)
    monitor.stop()
    assert hooks(net, optimizer) == 0
    assert (set(vars(optimizer)), optimizer.step, vars(nn.DistributedGradReducer)) == before


def test_a_step_of_somebody_elses_is_put_back(torch: Torch) -> None:
    """A scheduler may have wrapped ``step`` on the object before."""
    net = tiny_net(torch)
    optimizer = torch.SGD(net.parameters(), lr=LR)
    inherited, calls = optimizer.step, []

    def wrapped() -> None:
        calls.append(1)
        inherited()

    optimizer.step = wrapped
    monitor = watch(net, optimizer)
    one_step(net, optimizer)
    monitor.stop()
    assert calls == [1]
    assert monitor.step == 1
    assert optimizer.step is wrapped


def test_two_optimizers_of_one_class(torch: Torch) -> None:
    ours, other = tiny_net(torch), tiny_net(torch)
    optimizer, others = (torch.SGD(net.parameters(), lr=LR) for net in (ours, other))
    monitor = watch(ours, optimizer)
    one_step(other, others)
    assert monitor.step == 0
    one_step(ours, optimizer)
    one_step(other, others)
    assert monitor.step == 1
    rows = rows_of(monitor)
    assert {row.step for row in rows} == {0}
    assert_row(rows, Row("param_origin", 0, "fc2.weight"), W2)


@pytest.mark.parametrize("settings", [{}, {"monitor_mbs_grad": True}, {"step_interval": 2}])
def test_training_is_not_disturbed(torch: Torch, settings: dict[str, Any]) -> None:
    trained = []
    for watched in (False, True):
        net = tiny_net(torch)
        optimizer = torch.Adam(net.parameters(), lr=0.01)
        monitor = watch(net, optimizer, **settings) if watched else None
        for _ in range(3):
            one_step(net, optimizer, micro_batches=2)
        trained.append(bits(net))
        if monitor is not None:
            assert rows_of(monitor)
    assert trained[0] == trained[1]
    assert trained[0] != bits(tiny_net(torch))


def test_an_exception_in_a_step_is_the_users_and_the_next_step_counts(torch: Torch) -> None:
    net = tiny_net(torch)
    optimizer = torch.SGD(net.parameters(), lr=LR)
    failing = [True]
    inherited = optimizer.step

    def fails_once() -> None:
        if failing.pop():
            raise ArithmeticError("of training")
        inherited()

    optimizer.step = fails_once
    monitor = watch(net, optimizer)
    failing.insert(0, False)
    with pytest.raises(ArithmeticError, match="of training"):
        one_step(net, optimizer)
    one_step(net, optimizer)
    assert monitor.step == 1
    assert rows_of(monitor)


def test_real_torch_beside_it_is_refused(torch: Torch) -> None:
    """PyTorch's own modules and optimizers have the same methods, over other tensors."""
    pytorch = require("torch")
    theirs = pytorch.nn.Linear(2, 1)
    their_optimizer = pytorch.optim.SGD(theirs.parameters(), lr=LR)
    net = tiny_net(torch)
    optimizer = torch.SGD(net.parameters(), lr=LR)
    with pytest.raises(ValueError, match=r"model: expected a mindspore\.nn\.Cell.*torch.nn.modules.linear.Linear"):
        watch(theirs, optimizer)
    with pytest.raises(ValueError, match=r"model: expected a mindspore\.nn\.Cell.*ReLU"):
        watch(pytorch.nn.ReLU(), optimizer)
    with pytest.raises(ValueError, match=r"optimizer: expected a mindspore\.nn\.Optimizer.*torch.optim.sgd.SGD"):
        watch(net, their_optimizer)
    assert hooks(net, optimizer) == 0


def test_real_torch_trains_beside_it(torch: Torch) -> None:
    pytorch = require("torch")
    theirs = pytorch.nn.Linear(2, 1)
    their_optimizer = pytorch.optim.SGD(theirs.parameters(), lr=LR)
    net = tiny_net(torch)
    optimizer = torch.SGD(net.parameters(), lr=LR)
    monitor = watch(net, optimizer)
    theirs(pytorch.tensor(X)).sum().backward()
    their_optimizer.step()
    one_step(net, optimizer)
    rows = rows_of(monitor)
    assert {row.step for row in rows} == {0}
    assert {row.name for row in rows if row.signal == "param_origin"} == set(PARAMETERS)
