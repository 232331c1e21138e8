"""Every op of every dtype, through real training steps and real module calls, against NumPy in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.matrix.by_hand import numbers
from tests.matrix.harness import Harness, train_step
from tests.matrix.models import aside, product
from tests.matrix.watching import (
    ACTIVATIONS,
    EVERYTHING,
    GRADIENTS,
    OPS,
    assert_numbers,
    assert_rows,
    lines_of,
    rows_of,
    watching,
)
from tests.tables import Row

pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # NumPy's, of NaN and Inf

NAN, INF = math.nan, math.inf
BFLOAT16 = pytest.param("bfloat16", marks=pytest.mark.needs("bfloat16"))
FLOATS = ["float64", "float32", "float16", BFLOAT16]
INTEGERS = {"int64": 2**40, "int32": 2**30, "int8": 127, "uint8": 255}
SIZES = [1, 5, 5000, 70_001]
"""Few elements, and more than are reduced together or in one block."""


def normal(size: int, seed: int = 0) -> np.ndarray:
    return np.random.RandomState(seed).standard_normal(size)


def gradient_lines(framework: Harness, gradient: Any, dtype: str, **config: Any) -> list[dict[str, str]]:
    """The cells of a gradient's rows, unreduced and reduced, after a training step."""
    model = product(framework, np.zeros(np.shape(gradient)), dtype)
    optimizer = framework.optimizer("momentum", model, lr=0.0, momentum=0.5)
    settings = GRADIENTS | {"alert": {"rules": []}} | config
    with watching(framework, settings, model, optimizer) as monitor:
        train_step(framework.loop(model, optimizer), framework.tensor(gradient, dtype))
    tables = lines_of(monitor)
    return [line for kind in ("unreduced", "reduced") for line in tables[f"grad_{kind}_0-0"]]


def assert_line(line: dict[str, str], values: np.ndarray) -> None:
    got = {op: float(line[op]) for op in OPS}
    assert_numbers(got, numbers(values), math.sqrt(values.size), line["name"])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_gradients_of_every_float(framework: Harness, dtype: str, size: int) -> None:
    """Every op of a gradient of ordinary values, with its shape and dtype, before and after reduction."""
    values = framework.array(framework.tensor(normal(size), dtype))
    lines = gradient_lines(framework, normal(size), dtype)
    assert len(lines) == 2
    for line in lines:
        assert_line(line, values)
        assert (line["shape"], line["dtype"]) == (str([size]), str(framework.DTYPES[dtype]))


@pytest.mark.parametrize("magnitude", [1e-25, 1e25])
@pytest.mark.parametrize("dtype", ["float64", "float32", BFLOAT16])
def test_magnitudes_whose_squares_leave_the_range(framework: Harness, dtype: str, magnitude: float) -> None:
    """Elements of 1e-25 and 1e25 have a norm and a std."""
    values = magnitude * normal(5000)
    for line in gradient_lines(framework, values, dtype, ndigits=None):
        assert_line(line, framework.array(framework.tensor(values, dtype)))


def test_half_precision_sums_do_not_overflow(framework: Harness) -> None:
    """The sum of 5000 elements of 1000 is far beyond float16, their mean is not."""
    for line in gradient_lines(framework, np.full(5000, 1000.0), "float16"):
        assert (float(line["mean"]), float(line["std"])) == (1000.0, 0.0)


def test_a_std_far_below_the_mean(framework: Harness) -> None:
    """A std of 1e-4 of the mean is right to five digits."""
    values = (1 + 1e-4 * normal(5000)).astype(np.float32)
    for line in gradient_lines(framework, values, "float32"):
        assert_line(line, values)


@pytest.mark.parametrize("size", [5, 5000])
@pytest.mark.parametrize("odd", [(NAN,), (-INF,), (NAN, INF), (INF, -INF)], ids=str)
@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_and_infinity(framework: Harness, dtype: str, odd: tuple[float, ...], size: int) -> None:
    """NaN goes through to min, max, mean, norm and std; Inf makes the norm infinite; both are counted."""
    values = np.round(normal(size), 1)
    values[1 : 1 + len(odd)] = odd
    for line in gradient_lines(framework, values, dtype):
        assert_line(line, framework.array(framework.tensor(values, dtype)))
        assert (line["nans"], line["infs"]) == (str(np.isnan(odd).sum()), str(np.isinf(odd).sum()))
        if NAN in odd:
            assert {line[op] for op in ("min", "max", "mean", "norm", "std")} == {"nan"}
        else:
            assert line["norm"] == "inf"


@pytest.mark.parametrize("eps", [1e-8, 0.5])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_zeros_are_those_below_eps(framework: Harness, dtype: str, eps: float) -> None:
    """The fraction below eps, compared in a precision in which eps is not 0."""
    values = [0.0, 1e-7, -0.25, 1.0]
    for line in gradient_lines(framework, values, dtype, eps=eps):
        assert float(line["zeros"]) == (0.25 if eps == 1e-8 else 0.75)


@pytest.mark.parametrize(("values", "expected"), [(2.5, "2.5"), ([2.5], "nan")])
def test_the_value_of_a_scalar(framework: Harness, values: Any, expected: str) -> None:
    """``id`` is the value of a tensor without dimensions, and of no other."""
    for line in gradient_lines(framework, values, "float32", ops=["id", "norm"]):
        assert (line["id"], line["norm"]) == (expected, "2.5")
        assert line["shape"] == str(list(np.shape(values)))


def test_only_the_ops_asked_for_in_their_order(framework: Harness) -> None:
    """The columns are the configured ones; shape and dtype are written in any case."""
    (line, _) = gradient_lines(framework, [3.0, 4.0], "float32", ops=["norm", "shape", "max", "min"])
    assert list(line) == ["vpp_stage", "name", "step", "norm", "max", "min", "shape", "dtype"]
    assert list(line.values()) == ["0", "w", "0", "5.0", "4.0", "3.0", "[2]", str(framework.DTYPES["float32"])]


@pytest.mark.parametrize("dtype", FLOATS)
def test_parameters_and_state_of_every_float(framework: Harness, dtype: str) -> None:
    """Parameters before and after updates, and the optimizer's state, in the dtype that they have."""
    start, gradient = np.array([1.0, -2.0, 0.5]), np.array([4.0, 8.0, -2.0])
    model = product(framework, start, dtype)
    optimizer = framework.optimizer("momentum", model, lr=0.25, momentum=0.5)
    loop = framework.loop(model, optimizer)
    with watching(framework, EVERYTHING | {"xy_distribution": False}, model, optimizer) as monitor:
        for _ in range(2):
            train_step(loop, framework.tensor(gradient, dtype))
    rows = {row: values for row, values in rows_of(monitor).items() if row.step}
    once, twice = start - 0.25 * gradient, start - 0.25 * gradient - 0.25 * 1.5 * gradient
    expected = {"param_origin": once, "param_updated": twice, "momentum_buffer": gradient}
    assert_rows(rows, {Row(signal, 1, "w"): array for signal, array in expected.items()}, *expected)
    lines = [line for table in lines_of(monitor).values() for line in table]
    assert {line["dtype"] for line in lines} == {str(framework.DTYPES[dtype])}


def seen_aside(framework: Harness, other: Any, **config: Any) -> list[dict[str, str]]:
    """The rows of a tensor that goes through a module aside, at its input and its output."""
    model = aside(framework)
    optimizer = framework.optimizer("momentum", model, lr=0.25, momentum=0.5)
    loop = framework.loop(model, optimizer)
    with watching(framework, ACTIVATIONS | {"targets": {"look": {}}} | config, model, optimizer) as monitor:
        loop.micro_batch(framework.tensor(np.ones(2)), other)
        loop.update()
    (table,) = lines_of(monitor).values()
    assert [line["name"] for line in table] == ["look.input", "look.output"]
    return table


@pytest.mark.parametrize("size", [1, 5, 5000])
@pytest.mark.parametrize("dtype", [*INTEGERS, "bool", "complex64", "complex128", "float64", "float16", BFLOAT16])
def test_activations_of_every_dtype(framework: Harness, dtype: str, size: int) -> None:
    """Integers count by their value, bool as 0 and 1, complex numbers by their magnitude."""
    values = normal(size)
    if dtype in INTEGERS:
        values = np.clip(values / 4, 0 if dtype == "uint8" else -1, 1) * INTEGERS[dtype]
    elif dtype.startswith("complex"):
        values = values + 1j * normal(size, 1)
    elif dtype == "bool":
        values = values > 0
    tensor = framework.tensor(values, dtype)
    for line in seen_aside(framework, tensor):
        assert_line(line, framework.array(tensor))
        assert (line["shape"], line["dtype"]) == (str([size]), str(framework.DTYPES[dtype]))


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("shape", [(0,), (2, 0, 3)])
def test_an_empty_tensor(framework: Harness, shape: tuple[int, ...]) -> None:
    """No extremes, no mean, no fraction, no std; a norm of 0, and neither NaN nor Inf."""
    for line in seen_aside(framework, framework.tensor(np.zeros(shape))):
        cells = {op: line[op] for op in OPS}
        assert cells == {
            **dict.fromkeys(("min", "max", "mean", "zeros", "std"), "nan"), "norm": "0.0", "nans": "0", "infs": "0"
        }  # fmt: skip
        assert line["shape"] == str(list(shape))


def test_a_view_that_does_not_lie_together(framework: Harness) -> None:
    """A transposed array has the numbers of its elements, wherever they lie."""
    values = normal(6000).reshape(60, 100)
    for line in seen_aside(framework, framework.tensor(values.T)):
        assert_line(line, values.astype(np.float32))
        assert line["shape"] == "[100, 60]"
