"""The interpretable features of l2_targets, against NumPy in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tests.matrix.harness import Array, Harness, Module, Tensor, generators, train_step
from tests.matrix.models import X, noisy, tiny_net
from tests.matrix.watching import lines_of, train, watching

RANDOM = np.random.RandomState(3)
Lines = list[dict[str, str]]


def watched(framework: Harness, model: Module, l2: dict[str, Any], *steps: Sequence[Tensor], **more: Any) -> Lines:
    """The rows of the only table that a training gives whose steps have these micro batches."""
    config = {"recording_l2_features": True, "l2_targets": l2, "ndigits": 20, "squash_name": False, **more}
    optimizer = framework.optimizer("momentum", model, lr=0.0, momentum=0.0)
    loop = framework.loop(model, optimizer)
    with watching(framework, config, model, optimizer) as monitor:
        for micro_batches in steps:
            train_step(loop, *micro_batches)
    tables = lines_of(monitor)
    return [row for rows in tables.values() for row in rows]


# linear_hook


def rotated(values: Any, rows: int, columns: int) -> Array:
    """A matrix of these singular values."""
    left, _ = np.linalg.qr(RANDOM.standard_normal((rows, rows)))
    right, _ = np.linalg.qr(RANDOM.standard_normal((columns, columns)))
    return left[:, : len(values)] * np.asarray(values) @ right[: len(values)]


MATRICES: dict[str, Callable[[], Array]] = {
    "diagonal": lambda: np.diag([4.0, 3.0, 2.0, 1.0]),
    "wide": lambda: RANDOM.standard_normal((7, 300)),
    "tall": lambda: RANDOM.standard_normal((300, 200)),
    "square": lambda: RANDOM.standard_normal((400, 400)),
    "close": lambda: rotated(1 - 1e-3 * np.linspace(0, 1, 300), 300, 300),
    "dense at the top": lambda: rotated(np.cos(np.linspace(0, np.pi / 2, 400)), 400, 400),
    "all equal": lambda: rotated(np.full(200, 3.0), 200, 200),
    "rank 2": lambda: rotated([5.0, 4.9999], 80, 90),
    "one row": lambda: RANDOM.standard_normal((1, 9)),
    "one column": lambda: RANDOM.standard_normal((9, 1)),
    "one element": lambda: np.array([[-3.0]]),
    "huge": lambda: 1e25 * RANDOM.standard_normal((30, 40)),
    "tiny": lambda: 1e-25 * RANDOM.standard_normal((30, 40)),
    "sparse": lambda: np.eye(50)[::-1] * 7.0,
}


@pytest.mark.parametrize("kind", MATRICES)
def test_linear(framework: Harness, kind: str) -> None:
    """kernel_norm is the largest singular value and sr the Frobenius norm divided by it, to 1e-4 of either."""
    weight = MATRICES[kind]().astype(np.float32)
    model = only_linear(framework, weight)
    (row,) = watched(framework, model, {"linear_hook": ["fc"]}, [framework.tensor(np.zeros((1, weight.shape[1])))])
    values = np.linalg.svd(weight.astype(np.float64), compute_uv=False)
    assert float(row["kernel_norm"]) == pytest.approx(values[0], rel=1e-4)
    assert float(row["sr"]) == pytest.approx(np.sqrt(((values / values[0]) ** 2).sum()), rel=1e-4)


def only_linear(framework: Harness, weight: Any) -> Module:
    fc = framework.linear(weight)

    def forward(x: Tensor) -> Tensor:
        return fc(x)

    return framework.module(forward, fc=fc)


def of_parameter(framework: Harness, weight: Any, dtype: str = "float32", name: str = "weight") -> Module:
    """A module ``inner`` that calls its parameter so, and does not run."""
    inner = framework.module(None, **{name: framework.parameter(weight, dtype)})
    fc = framework.linear(np.eye(2))

    def forward(x: Tensor) -> Tensor:
        return fc(x)

    return framework.module(forward, fc=fc, inner=inner)


def test_linear_without_elements_of_size(framework: Harness) -> None:
    """Of nothing but zeros the norm is 0 and the ratio has no value; of NaN neither has one."""
    (row,) = watched(
        framework, only_linear(framework, np.zeros((4, 3))), {"linear_hook": ["fc"]}, [inputs(framework, 3)]
    )
    assert (float(row["kernel_norm"]), row["sr"]) == (0.0, "nan")
    bad = only_linear(framework, [[1.0, np.nan], [0.0, 1.0]])
    (row,) = watched(framework, bad, {"linear_hook": ["fc"]}, [inputs(framework, 2)], alert={"rules": []})
    assert (row["kernel_norm"], row["sr"]) == ("nan", "nan")


def inputs(framework: Harness, width: int) -> Tensor:
    return framework.tensor(np.ones((2, width)))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("name", ["weight", "wg"])
def test_linear_of_a_module_that_does_not_run(framework: Harness, dtype: str, name: str) -> None:
    """A weight of any floating dtype, under either name, is read though no forward shows it."""
    weight = RANDOM.standard_normal((20, 30)).astype(dtype)
    model = of_parameter(framework, weight, dtype, name)
    (row,) = watched(framework, model, {"linear_hook": ["0:inner"]}, [inputs(framework, 2)])
    assert row["name"] == "inner.linear"
    assert row["shape"] == "[20, 30]"
    assert dtype in row["dtype"].lower()
    assert float(row["kernel_norm"]) == pytest.approx(np.linalg.norm(weight.astype(np.float64), 2), rel=1e-4)


def test_linear_of_every_module(framework: Harness) -> None:
    """An empty list takes every module with a matrix; there is one row a step, whatever the micro batches."""
    x = framework.tensor(X)
    rows = watched(framework, tiny_net(framework), {"linear_hook": []}, [x, x], [x], [x], step_interval=2)
    assert [(row["step"], row["name"]) for row in rows] == [
        ("0", "fc.linear"), ("0", "fc2.linear"), ("2", "fc.linear"), ("2", "fc2.linear"),
    ]  # fmt: skip
    assert list(rows[0]) == ["vpp_stage", "name", "step", "sr", "kernel_norm", "shape", "dtype"]


def test_linear_by_default_is_none(framework: Harness) -> None:
    """Without the key, and without recording_l2_features, nothing is recorded."""
    x = framework.tensor(X)
    assert watched(framework, tiny_net(framework), {}, [x]) == []
    assert watched(framework, tiny_net(framework), {"linear_hook": []}, [x], recording_l2_features=False) == []


# What all of them have in common.


def test_an_unknown_name(framework: Harness) -> None:
    """A name that no module has is an error before training, with the nearest."""
    with pytest.raises(ValueError, match=r"l2_targets.linear_hook: expected names .* got '0:fcc'; did you mean '0:fc'"):
        watched(framework, tiny_net(framework), {"linear_hook": ["0:fcc"]})
    with pytest.raises(ValueError, match=r"l2_targets\.linear_hook"):
        watched(framework, tiny_net(framework), {"linear_hook": ["1:fc"]})


def test_a_module_that_does_not_fit(framework: Harness, caplog: pytest.LogCaptureFixture) -> None:
    """A module without a matrix is told once, and has no row."""
    x = framework.tensor(X)
    assert watched(framework, tiny_net(framework), {"linear_hook": ["relu"]}, [x], [x]) == []
    assert [("0:relu: expected a module with" in message) for message in caplog.messages] == [True]


def test_training_is_not_disturbed(framework: Harness) -> None:
    """Weights and random generators are the same to the last bit with features recorded and without."""

    def trained(config: dict[str, Any]) -> tuple[dict[str, bytes], list[object]]:
        framework.seed()
        model = noisy(framework)
        train(framework, config, model, steps=3)
        return {name: array.tobytes() for name, array in framework.weights(model).items()}, generators(framework)

    plain = trained({})
    assert trained({"recording_l2_features": True, "l2_targets": {"linear_hook": []}}) == plain == trained({})
