"""MindSpore: three batches have NaN; the loop skips their updates, and the loss looks as before."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("GLOG_v", "3")  # MindSpore logs its warnings to the terminal

import numpy as np
from case import NOT_FINITE, Case, Run, main, watch

CASE = Case(
    sources=("https://www.mindspore.cn/docs/en/master/api_python/mindspore/mindspore.amp.all_finite.html",),
    label="sentinel",
    kinds=NOT_FINITE,
    start=41,
    steps=80,
)


def batch(random: np.random.Generator, rule: Any) -> tuple[Any, Any]:
    """Inputs, and the classes that follow from them by a rule."""
    inputs = random.standard_normal((32, 32)).astype(np.float32)
    return inputs, (inputs @ rule).argmax(1).astype(np.int32)


def train(run: Run) -> None:
    """Train one twin."""
    import mindspore
    from mindspore import nn, ops

    mindspore.set_seed(run.seed)
    model = nn.SequentialCell(nn.Dense(32, 64), nn.ReLU(), nn.Dense(64, 64), nn.ReLU(), nn.Dense(64, 10)).set_train()
    optimizer = nn.Adam(model.trainable_params(), 1e-3)
    gradients_of = mindspore.value_and_grad(
        lambda inputs, classes: ops.cross_entropy(model(inputs), classes), None, optimizer.parameters
    )
    random = np.random.default_rng(run.seed)
    rule = random.standard_normal((32, 10)).astype(np.float32)
    monitor = watch(model, optimizer, framework="mindspore")
    for step in range(run.steps):
        inputs, classes = batch(random, rule)
        if run.faulty and CASE.start <= step < CASE.start + 3:
            inputs[3, 5] = np.nan
        loss, gradients = gradients_of(mindspore.Tensor(inputs), mindspore.Tensor(classes))
        if mindspore.amp.all_finite(gradients):
            optimizer(gradients)
        monitor.log(loss=loss)
    monitor.stop()


if __name__ == "__main__":
    main(CASE, train)
