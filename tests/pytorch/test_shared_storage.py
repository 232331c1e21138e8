"""Values that are changed in place, and tensors that share their storage: the numbers are those of the moment, the
gradients those of autograd, and training is as without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.pytorch.watching import numbers, read, watch
from tests.required import require
from tests.tables import Row

torch = require("torch")
functional = torch.nn.functional


class Layer(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A module that computes ``function``."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A layer, a function in a module of its own, and what becomes of its output."""

    def __init__(self, inner: Callable[[Any], Any], after: Callable[[Any], Any]) -> None:
        super().__init__()
        self.fc, self.inner, self.after = torch.nn.Linear(4, 4, bias=False), Layer(inner), after
        with torch.no_grad():
            self.fc.weight.copy_(torch.linspace(-1, 1, 16).reshape(4, 4))

    def forward(self, x: Any) -> Any:
        return self.after(self.inner(self.fc(x)))


def scaled_in_place(y: Any) -> Any:
    return y.mul_(3.0)


CASES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "relu in place": (functional.relu_, lambda y: y * y),
    "the output is changed afterwards": (lambda x: x * 2, scaled_in_place),
    "the output is changed twice": (lambda x: x * 2, lambda y: y.add_(1.0).mul_(2.0)),
    "a view of the input": (lambda x: x.t(), lambda y: y * y),
    "a view that is changed": (lambda x: (x * 1)[:, :2], lambda y: y.mul_(3.0) * 1),
    "the base of a view is changed": (lambda x: (x * 1).view(2, 8), lambda y: y.add_(1.0)),
    "expanded": (lambda x: x.sum(1, keepdim=True).expand(4, 4), lambda y: y * y),
    "handed through": (lambda x: x, lambda y: y * y),
    "handed through and changed": (lambda x: x, scaled_in_place),
    "overlapping windows": (lambda x: x.reshape(-1).unfold(0, 4, 2), lambda y: y * y),
}
X = torch.linspace(-2, 2, 16).reshape(4, 4)


def by_hand(net: Net) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, float]]]:
    """Numbers of values as they are when the module has run, and of gradients by autograd itself; it has none for a
    view that is changed in place afterwards, which has then another place in the graph."""
    hidden = net.fc(X)
    values = {"fc.output": numbers(hidden), "inner.input": numbers(hidden)}
    inner = net.inner.function(hidden)
    values["inner.output"] = numbers(inner)
    alias = inner.view_as(inner) if inner.is_leaf else inner
    inner.register_hook(lambda gradient: values.__setitem__("gradient", numbers(gradient)))
    net.after(alias).sum().backward()
    gradients = {"fc.weight": numbers(net.fc.weight.grad)}
    if (gradient := values.pop("gradient", None)) is not None:
        gradients["inner.output"] = gradient
    net.fc.weight.grad = None
    return values, gradients


@pytest.mark.parametrize("case", CASES)
def test_numbers_are_those_of_the_moment(case: str) -> None:
    """A tensor changed afterwards, itself or through another view, was recorded before; gradients are autograd's."""
    net, plain = Net(*CASES[case]), Net(*CASES[case])
    values, gradients = by_hand(plain)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    monitor = watch(net, optimizer)
    for _ in range(2):
        net(X).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    monitor.stop()
    assert monitor.faults == {}
    rows = read(monitor.output_directory)

    def found(signal: str, name: str) -> Any:
        return rows[Row(signal, 0, name)]

    for name, wanted in values.items():
        row = found("actv", name)
        assert {op: row[op] for op in wanted} == pytest.approx(wanted, rel=1e-4, abs=1e-6), name
    assert (Row("actv_grad", 0, "inner.output") in rows) == ("inner.output" in gradients)
    for name in gradients:
        row = found("grad_reduced" if name == "fc.weight" else "actv_grad", name)
        assert {op: row[op] for op in gradients[name]} == pytest.approx(gradients[name], rel=1e-4, abs=1e-6), name
    other = torch.optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(2):
        plain(X).sum().backward()
        other.step()
        other.zero_grad()
    assert torch.equal(net.fc.weight, plain.fc.weight)
