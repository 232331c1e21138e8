"""Training run on MindSpore's dynamic graph."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import mindspore
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.experimental import optim

from probe.demo.recipe import BYTES, LEARNING_RATE, LONGEST_GRADIENT, Bytes, Size, initial_weights, warm_up

EPSILON = 1e-5
"""Epsilon in the denominator of norms, as in PyTorch."""


class CausalAttention(nn.Cell):
    """Causal self-attention: every byte attends to itself and to earlier ones."""

    def __init__(self, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.projection = nn.Dense(width, 3 * width), nn.Dense(width, width)
        self.hidden = Tensor(np.triu(np.full((context, context), -np.inf, np.float32), 1))
        self.scores, self.mix = ops.BatchMatMul(transpose_b=True), ops.BatchMatMul()

    def construct(self, x: Tensor) -> Tensor:
        time, width = x.shape[1:]
        size = width // self.heads
        query, key, value = (
            part.reshape(-1, time, self.heads, size).transpose(0, 2, 1, 3) for part in ops.chunk(self.qkv(x), 3, -1)
        )
        scores = self.scores(query * size**-0.5, key) + self.hidden[:time, :time]
        mixed = self.mix(ops.softmax(scores), value)
        return self.projection(mixed.transpose(0, 2, 1, 3).reshape(x.shape))


class Block(nn.Cell):
    """Attention and a feed-forward net, each after a norm and with a residual branch."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        width, inner = size.width, 4 * size.width
        self.norm1 = nn.LayerNorm((width,), epsilon=EPSILON)
        self.attention = CausalAttention(width, size.heads, size.context)
        self.norm2 = nn.LayerNorm((width,), epsilon=EPSILON)
        parts = {"fc1": nn.Dense(width, inner), "act": nn.GELU(approximate=False), "fc2": nn.Dense(inner, width)}
        self.mlp = nn.SequentialCell(OrderedDict(parts))

    def construct(self, x: Tensor) -> Tensor:
        attended = x + self.attention(self.norm1(x))
        return attended + self.mlp(self.norm2(attended))


class Gpt(nn.Cell):
    """Map bytes ``(batch, time)`` to logits ``(batch, time, 256)``."""

    def __init__(self, size: Size, seed: int = 0) -> None:
        super().__init__()
        self.embedding, self.positions = (nn.Embedding(rows, size.width) for rows in (BYTES, size.context))
        self.layers = nn.CellList([Block(size) for _ in range(size.layers)])
        self.final_norm = nn.LayerNorm((size.width,), epsilon=EPSILON)
        self.output = nn.Dense(size.width, BYTES)
        parameters = dict(self.parameters_and_names())
        weights = initial_weights({name: held.shape for name, held in parameters.items()}, size.layers, seed)
        for name, values in weights.items():
            parameters[name].set_data(mindspore.tensor(values))

    def construct(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens) + self.positions(ops.arange(tokens.shape[1]))
        for block in self.layers:
            hidden = block(hidden)
        return self.output(self.final_norm(hidden))


class MindsporeTraining:
    """Training with AdamW as in PyTorch (``nn.AdamWeightDecay`` corrects no bias), warm-up and clipping."""

    def __init__(self, size: Size, seed: int) -> None:
        self.model = Gpt(size, seed)
        self.optimizer = optim.AdamW(self.model.trainable_params(), LEARNING_RATE)
        self._rates = optim.lr_scheduler.LambdaLR(self.optimizer, warm_up)
        self._loss_and_gradients = mindspore.value_and_grad(self._loss, None, self.optimizer.parameters)

    def step(self, tokens: Bytes, targets: Bytes, log: Callable[..., None]) -> float:
        loss, gradients = self._loss_and_gradients(
            *(mindspore.tensor(ids, mindspore.int32) for ids in (tokens, targets))
        )
        log(loss=loss)
        self.optimizer(clipped(gradients, LONGEST_GRADIENT))
        self._rates.step()
        return float(loss)

    def _loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return ops.cross_entropy(self.model(tokens).reshape(-1, BYTES), targets.reshape(-1))


def clipped(gradients: Sequence[Tensor], longest: float) -> tuple[Tensor, ...]:
    """Scale gradients so that their common norm is at most ``longest``.

    ``ops.clip_by_global_norm`` takes ten times as long on a CPU (2.10.0), and is deprecated.
    """
    norm = ops.sqrt(sum(ops.square(gradient).sum() for gradient in gradients))
    factor = ops.minimum(longest / (norm + 1e-6), Tensor(1.0))
    return tuple(gradient * factor for gradient in gradients)


def few_threads() -> AbstractContextManager[None]:
    """Change nothing: once MindSpore is loaded, the number of its threads cannot be reduced (2.10.0)."""
    return nullcontext()
