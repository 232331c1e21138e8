"""Healthy trainings on MindSpore; see ``_healthy_pytorch.py``."""

from __future__ import annotations

import os
from collections.abc import Callable

os.environ.setdefault("GLOG_v", "3")  # MindSpore logs its warnings to the terminal

import mindspore
from _healthy import Training, pieces
from mindspore import Tensor, nn, ops

from probe.demo import recipe
from probe.demo.mindspore.training import MindsporeTraining


def demo(size: recipe.Size) -> Callable[[int, bytes], Training]:
    """GPT of the demonstration, trained as there."""

    def make(seed: int, text: bytes) -> Training:
        training = MindsporeTraining(size, seed)
        data = pieces(text, size.context, seed, recipe.BATCH)
        return Training(training.model, training.optimizer, lambda: training.step(*next(data)))

    return make


class _NextByte(nn.Cell):
    """Prediction of the byte after eight others, with layers of ReLU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, 16)
        self.hidden = nn.SequentialCell(nn.Dense(128, width), nn.ReLU(), nn.Dense(width, width), nn.ReLU())
        self.output = nn.Dense(width, 256)

    def construct(self, tokens: Tensor) -> Tensor:
        return self.output(self.hidden(self.embedding(tokens).reshape(tokens.shape[0], -1)))


def mlp(seed: int, text: bytes) -> Training:
    """ReLU, SGD with momentum."""
    mindspore.set_seed(seed)
    model, data = _NextByte(96), pieces(text, 8, seed, 64)
    optimizer = nn.Momentum(model.trainable_params(), 0.05, 0.9)

    def loss(tokens: Tensor, targets: Tensor) -> Tensor:
        return ops.cross_entropy(model(tokens), targets)

    gradients = mindspore.value_and_grad(loss, None, optimizer.parameters)

    def step() -> None:
        tokens, targets = next(data)
        _, found = gradients(
            mindspore.tensor(tokens, mindspore.int32), mindspore.tensor(targets[:, -1], mindspore.int32)
        )
        optimizer(found)

    return Training(model, optimizer, step)


TRAININGS: dict[str, Callable[[int, bytes], Training]] = {
    "mindspore gpt": demo(recipe.Size(2, 96, 4, 64)),
    "mindspore mlp": mlp,
}
