"""Updates of Adam as MindSpore's optimizers with groups make them."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn
from mindspore.experimental import optim

from probe.mindspore import TrainerMon
from tests.tables import Row, read


def test_every_group_has_betas_of_its_own() -> None:
    """The learning rate times the update is how far the optimizer has moved each parameter."""
    start = np.linspace(-0.5, 0.5, 12).reshape(3, 4).astype(np.float32)
    net = nn.Dense(4, 3, weight_init=ms.Tensor(start), bias_init="zeros")
    weight, bias = net.trainable_params()
    groups = [{"params": [weight], "betas": (0.5, 0.75)}, {"params": [bias]}]
    optimizer = optim.Adam(groups, lr=0.125)
    inputs = ms.Tensor(np.linspace(-1, 1, 8).reshape(2, 4).astype(np.float32))
    step = ms.value_and_grad(lambda x: (net(x) - 1).square().sum(), None, [weight, bias])
    config = {"ur_distribution": True, "param_distribution": True, "ops": ["mean"], "ndigits": 20}
    with TrainerMon(config) as monitor:
        monitor.set_monitor(net, 1, optimizer)
        for _ in range(3):
            optimizer(step(inputs)[1])
    assert monitor.faults == {}
    rows = read(monitor.output_directory)
    for number in range(3):
        for name in ("weight", "bias"):
            before, after = (rows[Row(f"param_{when}", number, name)]["mean"] for when in ("origin", "updated"))
            assert after - before == pytest.approx(
                -0.125 * rows[Row("update", number, name)]["mean"], rel=1e-3, abs=1e-6
            )


OPTIMIZERS = {
    "Adam": lambda p: nn.Adam(p, learning_rate=0.01),
    "Adam with AMSGrad": lambda p: nn.Adam(p, learning_rate=0.01, use_amsgrad=True),
    "Adam, a large eps": lambda p: nn.Adam(p, learning_rate=0.01, eps=0.3),
    "LazyAdam, a large eps": lambda p: nn.LazyAdam(p, learning_rate=0.01, eps=0.3),
    "experimental Adam, a large eps": lambda p: optim.Adam(p, lr=0.01, eps=0.3),
    "experimental AdamW, a large eps": lambda p: optim.AdamW(p, lr=0.01, eps=0.3, weight_decay=0.0),
    "AdamWeightDecay": lambda p: nn.AdamWeightDecay(p, learning_rate=0.01),
    "AdamWeightDecay, a large eps": lambda p: nn.AdamWeightDecay(p, learning_rate=0.01, eps=0.3),
    "experimental Adam, which leaves AMSGrad out": lambda p: optim.Adam(p, lr=0.01, amsgrad=True),
    "experimental AdamW with AMSGrad": lambda p: optim.AdamW(p, lr=0.01, weight_decay=0.0, amsgrad=True),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_the_update_is_the_optimizers_own(kind: str) -> None:
    """Whether or not it corrects its moments for having begun at zero, and by the second moment that it divides by."""
    net = nn.Dense(4, 3, weight_init="zeros", bias_init="zeros")
    weight, bias = net.trainable_params()
    optimizer = OPTIMIZERS[kind]([weight, bias])
    gradients = [np.random.RandomState(i).standard_normal((3, 4)).astype(np.float32) / (i + 1) for i in range(4)]
    moved = []
    config = {"ur_distribution": True, "ops": ["norm"], "ndigits": 20}
    with TrainerMon(config) as monitor:
        monitor.set_monitor(net, 1, optimizer)
        for gradient in gradients:
            before = weight.asnumpy().copy()
            optimizer((ms.Tensor(gradient), ms.Tensor(gradient[:, 0])))
            moved.append(np.linalg.norm((before - weight.asnumpy()).astype(np.float64)) / 0.01)
    assert monitor.faults == {}
    rows = read(monitor.output_directory)
    for step, length in enumerate(moved):
        assert rows[Row("update", step, "weight")]["norm"] == pytest.approx(length, rel=1e-4)
