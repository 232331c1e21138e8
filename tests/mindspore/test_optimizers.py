"""Optimizer state goes by torch's names, row by row; the manifest keeps MindSpore's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.mindspore.toys import HAS_IDENTITIES, TinyNet, ms, nn, one_step, rows_of, watch
from tests.tables import Row

from probe.mindspore.finding import CellFinder  # isort: skip - only where MindSpore is

experimental, mint = ms.experimental.optim, ms.mint.optim
OPTIMIZERS: dict[str, tuple[Callable[[Any], Any], dict[str, str]]] = {
    "nn.Adam": (lambda p: nn.Adam(p, 0.1), {"exp_avg": "moment1", "exp_avg_sq": "moment2"}),
    "nn.Adam amsgrad": (
        lambda p: nn.Adam(p, 0.1, use_amsgrad=True),
        {"exp_avg": "moment1", "exp_avg_sq": "moment2", "max_exp_avg_sq": "vhat"},
    ),
    "nn.AdamWeightDecay": (lambda p: nn.AdamWeightDecay(p, 0.1), {"exp_avg": "moments1", "exp_avg_sq": "moments2"}),
    "nn.AdaMax": (lambda p: nn.AdaMax(p, 0.1), {"exp_avg": "moment1", "exp_inf": "moment2"}),
    "nn.Momentum": (lambda p: nn.Momentum(p, 0.1, 0.9), {"momentum_buffer": "moments"}),
    "nn.SGD": (lambda p: nn.SGD(p, 0.1), {}),
    "nn.SGD momentum": (lambda p: nn.SGD(p, 0.1, momentum=0.9), {"momentum_buffer": "accum"}),
    "nn.RMSProp": (lambda p: nn.RMSProp(p, 0.1), {"square_avg": "ms", "momentum_buffer": "moment"}),
    "nn.Adagrad": (lambda p: nn.Adagrad(p, learning_rate=0.1), {"sum": "accum"}),
    "nn.FTRL": (nn.FTRL, {"moments": "moments", "linear": "linear"}),
    "experimental.Adam": (
        lambda p: experimental.Adam(p, lr=0.1),
        {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"},
    ),
    "experimental.AdamW amsgrad": (
        lambda p: experimental.AdamW(p, lr=0.1, amsgrad=True),
        {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq", "max_exp_avg_sq": "max_exp_avg_sq"},
    ),
    "experimental.SGD": (lambda p: experimental.SGD(p, lr=0.1), {}),
    "experimental.SGD momentum": (
        lambda p: experimental.SGD(p, lr=0.1, momentum=0.9),
        {"momentum_buffer": "accum"},
    ),
    "mint.Adam": (lambda p: mint.Adam(p, lr=0.1), {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}),
    "mint.SGD momentum": (lambda p: mint.SGD(p, lr=0.1, momentum=0.9), {"momentum_buffer": "momentum_buf"}),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_under_the_names_of_torch(name: str) -> None:
    if name == "mint.Adam" and not HAS_IDENTITIES:
        pytest.skip("it has no kernel for CPUs before MindSpore 2.9")
    make, expected = OPTIMIZERS[name]
    net = TinyNet()
    optimizer = make(net.trainable_params())
    monitor = watch(net, optimizer, xy_distribution=False)
    one_step(net, optimizer)
    kept = {kind: [held.asnumpy().copy() for held in getattr(optimizer, native)] for kind, native in expected.items()}
    one_step(net, optimizer)
    rows = rows_of(monitor)
    signals = {"grad_unreduced", "grad_reduced", "param_origin", "param_updated"}
    assert {row.signal for row in rows} - signals == set(expected)
    names = [parameter for parameter, _ in net.parameters_and_names()]
    for kind, arrays in kept.items():
        for parameter, array in zip(names, arrays, strict=True):
            exact = float(np.sqrt(np.square(array.astype(np.float64)).sum()))
            assert rows[Row(kind, 1, parameter)]["norm"] == pytest.approx(exact, rel=1e-6)
    manifest = json.loads((Path(monitor.output_directory) / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["optimizer_state_names"] == [expected]


def test_parameter_groups_with_rates_of_their_own() -> None:
    """One learning rate a parameter looks like a state of it, and is none."""
    net = TinyNet()
    groups = [{"params": [net.fc2.weight], "lr": 0.5}, {"params": [net.fc.weight, net.fc.bias], "lr": 0.1}]
    optimizer = nn.Momentum(groups, 0.1, 0.9)
    monitor = watch(net, optimizer, xy_distribution=False)
    before = {name: held.asnumpy().copy() for name, held in net.parameters_and_names()}
    _, grads = ms.value_and_grad(lambda x: net(x).sum(), None, optimizer.parameters)(
        ms.Tensor(np.array([[1, 1], [0, -1]], np.float32))
    )
    exact = {p.name: float(np.linalg.norm(g.asnumpy())) for p, g in zip(optimizer.parameters, grads, strict=True)}
    optimizer(grads)
    rows = rows_of(monitor)
    assert {row.signal for row in rows} == {
        "grad_unreduced", "grad_reduced", "param_origin", "param_updated", "momentum_buffer",
    }  # fmt: skip
    for name, _ in net.parameters_and_names():
        assert rows[Row("grad_reduced", 0, name)]["norm"] == pytest.approx(exact[name], rel=1e-6)
        assert rows[Row("param_origin", 0, name)]["norm"] == pytest.approx(np.linalg.norm(before[name]), rel=1e-6)


def test_settings_of_an_optimizer_that_is_made_anew() -> None:
    """Alike where nothing but the number of updates differs, so that a run goes on with it."""
    settings, model = CellFinder().settings, TinyNet()

    def made(kind: Any, *options: Any) -> str:
        optimizer = kind(model.trainable_params(), *options)
        one_step(model, optimizer)
        return settings(optimizer)

    rates = [0.1, 0.01, 0.001]
    same = [(nn.Adam, 0.1), (nn.Momentum, rates, 0.9), (nn.SGD, 0.1)]
    assert all(made(*each) == settings(each[0](model.trainable_params(), *each[1:])) != "" for each in same)
    assert made(nn.Adam, 0.1) != made(nn.Adam, 0.2)
    assert made(nn.Momentum, rates, 0.9) != made(nn.Momentum, rates, 0.5)


def test_settings_run_nothing_of_the_program() -> None:
    """A decay that is a cell of the program's is not known: to read it, that cell would run."""

    class Decay(nn.Cell):
        def construct(self, step: Any) -> Any:
            raise AssertionError("ran")

    optimizer = nn.Momentum(TinyNet().trainable_params(), 0.1, 0.9, Decay())
    assert "weight_decay" not in CellFinder().settings(optimizer) != ""
