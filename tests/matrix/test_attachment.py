"""Modules that are used in other ways than once with one tensor in and out."""

from __future__ import annotations

import numpy as np

from tests.matrix.harness import Harness, Module, train_step
from tests.matrix.models import SQUARE, X, called_twice, keywords, residual, tiny_net, with_idle
from tests.matrix.watching import EVERYTHING, LR, MOMENTUM, assert_rows, names_of, only, rows_of, train, watching
from tests.tables import Row, Rows

ONES = np.ones((2, 2))


def trained(framework: Harness, model: Module, steps: int = 1, **settings: object) -> Rows:
    """The rows of a training on the sum of the outputs."""
    return train(framework, EVERYTHING | settings, model, steps)


def test_a_module_that_is_called_twice(framework: Harness) -> None:
    """Each call has its own rows, values and gradients; the weight has one gradient, the sum over both."""
    rows = trained(framework, called_twice(framework))
    once, twice = X @ SQUARE.T, X @ SQUARE.T @ SQUARE.T
    values = [("input", 0, X), ("output", 0, once), ("input", 1, once), ("output", 1, twice)]
    gradients = [("output", 0, ONES @ SQUARE), ("input", 1, ONES @ SQUARE), ("output", 1, ONES)]
    weight = ONES.T @ once + (ONES @ SQUARE).T @ X
    expected = {Row("actv", 0, f"fc.{part}", call=call): array for part, call, array in values}
    expected |= {Row("actv_grad", 0, f"fc.{part}", call=call): array for part, call, array in gradients}
    expected |= {Row(signal, 0, "fc.weight"): weight for signal in ("grad_unreduced", "grad_reduced")}
    found = {row: values for row, values in rows.items() if row.name.startswith("fc")}
    assert_rows(found, expected, "actv", "actv_grad", "grad_unreduced", "grad_reduced")


def test_a_residual_branch(framework: Harness) -> None:
    """The gradient of a module's input is the one through this module, the way around it left out."""
    rows = trained(framework, residual(framework))
    branch, through = ONES, ONES @ (2 * SQUARE)
    expected = {
        Row("actv_grad", 0, ".output"): ONES,
        Row("actv_grad", 0, "branch.output"): branch,
        Row("actv_grad", 0, "branch.input"): through,
        Row("actv_grad", 0, "first.output"): ONES + through,
    }
    assert_rows(rows, expected, "actv_grad")


def test_keyword_arguments(framework: Harness) -> None:
    """Tensors given by keyword are inputs like others, after the positional ones; what is no tensor has no row."""
    rows = trained(framework, keywords(framework))
    h = X @ SQUARE.T
    values = {"input_0": h, "input_1": 2 * h, "output": 2 * h * h}
    gradients = {"input_0": 2 * h, "input_1": h, "output": ONES}
    expected = {Row("actv", 0, f"inner.{part}"): array for part, array in values.items()}
    expected |= {Row("actv_grad", 0, f"inner.{part}"): array for part, array in gradients.items()}
    found = {row: values for row, values in rows.items() if row.name.startswith("inner")}
    assert_rows(found, expected)


def test_a_parameter_that_takes_no_part(framework: Harness) -> None:
    """A parameter without a new gradient has no row of one; the parameter itself has its row."""
    rows = trained(framework, with_idle(framework), steps=2)
    for signal in ("grad_unreduced", "grad_reduced"):
        assert names_of(rows, signal) == {"used.weight"}
    assert names_of(rows, "param_origin") == {"used.weight", "idle.weight"}
    idle = only({row: values for row, values in rows.items() if row.name == "idle.weight"}, "param_updated")
    assert_rows(idle, {Row("param_updated", step, "idle.weight"): SQUARE for step in (0, 1)})


def test_two_optimizers_share_a_step(framework: Harness) -> None:
    """A step of two optimizers ends when both have updated: one row for each parameter and step."""
    models = [tiny_net(framework), tiny_net(framework)]
    optimizers = [framework.optimizer("momentum", model, lr=LR, momentum=MOMENTUM) for model in models]
    parent = framework.module(lambda x: framework.add(models[0](x), models[1](x)), a=models[0], b=models[1])
    loop = framework.loop(parent, *optimizers)
    with watching(framework, EVERYTHING, parent, optimizers) as monitor:
        for _ in range(3):
            train_step(loop, framework.tensor(X))
    assert monitor.step == 3
    rows = rows_of(monitor)
    parameters = [f"{model}.{name}" for model in "ab" for name in ("fc.weight", "fc.bias", "fc2.weight")]
    for signal in ("grad_unreduced", "grad_reduced", "param_origin", "param_updated"):
        expected = {Row(signal, step, name) for step in range(3) for name in parameters}
        assert {row for row in rows if row.signal == signal} == expected
