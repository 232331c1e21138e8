"""``grad_reduced`` is what the optimizer reads, by whichever way it came there."""

from __future__ import annotations

from typing import Any

import pytest

from tests.pytorch.toys import TinyNet, X
from tests.pytorch.watching import Rows, numbers, rows_of, watch, weights_only
from tests.required import require

torch = require("torch")


def gradients(model: Any) -> list[Any]:
    """Of the sum of the outputs, computed without touching ``.grad``."""
    return list(torch.autograd.grad(model(X).sum(), list(model.parameters())))


def assign(_: Any, parameters: list[Any], found: list[Any]) -> None:
    for parameter, gradient in zip(parameters, found, strict=True):
        parameter.grad = gradient * 3


def add(model: Any, parameters: list[Any], found: list[Any]) -> None:
    model(X).sum().backward()
    for parameter, gradient in zip(parameters, found, strict=True):
        parameter.grad.add_(gradient)


def add_unseen(model: Any, parameters: list[Any], found: list[Any]) -> None:
    model(X).sum().backward()
    for parameter, gradient in zip(parameters, found, strict=True):
        parameter.grad.data.add_(gradient)


def replace(model: Any, parameters: list[Any], _: list[Any]) -> None:
    model(X).sum().backward()
    for parameter in parameters:
        parameter.grad = parameter.grad.clamp(-0.5, 0.5)


def accumulate(model: Any, parameters: list[Any], found: list[Any]) -> None:
    for number in range(3):
        for parameter, gradient in zip(parameters, found, strict=True):
            parameter.grad = gradient.clone() if not number else parameter.grad + gradient
        model(X)


WAYS = {way.__name__: way for way in (assign, add, add_unseen, replace, accumulate)}


def applied(rows: Rows, step: int) -> dict[str, dict[str, Any]]:
    return {row.name: values for row, values in rows.items() if row.signal == "grad_reduced" and row.step == step}


@pytest.mark.parametrize("way", WAYS)
def test_what_the_optimizer_reads_is_recorded(way: str) -> None:
    """Assigned without a backward, changed in place after one, or put in its place: the row has these numbers."""
    model = TinyNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    monitor = watch(model, optimizer, **weights_only())
    expected = []
    for _ in range(2):
        WAYS[way](model, list(model.parameters()), gradients(model))
        expected.append({name: numbers(parameter.grad) for name, parameter in model.named_parameters()})
        optimizer.step()
        optimizer.zero_grad()
    rows = rows_of(monitor)
    for step, wanted in enumerate(expected):
        found = applied(rows, step)
        assert found.keys() == wanted.keys()
        for name, values in wanted.items():
            assert {op: found[name][op] for op in values} == pytest.approx(values, rel=1e-5, nan_ok=True), name


def test_a_gradient_that_is_left_is_applied_again() -> None:
    """Not cleared, it is read again; a gradient that no backward made is no unreduced gradient."""
    model = TinyNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    monitor = watch(model, optimizer, **weights_only())
    model(X).sum().backward()
    kept = numbers(model.fc.weight.grad)["norm"]
    for _ in range(3):
        optimizer.step()
        model.fc2.weight.grad = None
    rows = rows_of(monitor)
    assert [set(applied(rows, step)) for step in range(3)] == [
        {"fc.weight", "fc.bias", "fc2.weight"},
        *[{"fc.weight", "fc.bias"}] * 2,
    ]
    assert [applied(rows, step)["fc.weight"]["norm"] for step in range(3)] == pytest.approx([kept] * 3)
    assert {row.step for row in rows if row.signal == "grad_unreduced"} == {0}


def test_a_gradient_that_nobody_applies_has_no_row() -> None:
    """Of a parameter that no optimizer updates nothing is read, whatever lies there."""
    model = TinyNet()
    optimizer = torch.optim.SGD(model.fc.parameters(), lr=0.25)
    monitor = watch(model, optimizer, **weights_only())
    model(X).sum().backward()
    optimizer.step()
    rows = rows_of(monitor)
    assert set(applied(rows, 0)) == {"fc.weight", "fc.bias"}
    assert {row.name for row in rows if row.signal == "grad_unreduced"} == {"fc.weight", "fc.bias", "fc2.weight"}


def test_each_optimizer_reads_its_own() -> None:
    """Of two optimizers in a step each has the rows of its gradients, at its own update."""
    model = TinyNet()
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.25) for layer in (model.fc, model.fc2)]
    monitor = watch(model, optimizers, **weights_only())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizers[0].step()
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 2.0)
    optimizers[1].step()
    rows = applied(rows_of(monitor), 0)
    assert {name: values["max"] for name, values in rows.items()} == {"fc.weight": 1, "fc.bias": 1, "fc2.weight": 2}
