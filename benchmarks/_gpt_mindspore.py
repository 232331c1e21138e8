"""GPT of ``_gpt.py``, with as many parameters of the same sizes, in MindSpore's dynamic graph."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("GLOG_v", "3")  # MindSpore logs its warnings to the terminal

import mindspore
import numpy as np
from mindspore import Tensor, nn, ops

from probe.mindspore.private_api import executor

LAYERS, WIDTH, HEADS, VOCABULARY = 12, 256, 4, 256
BATCH, TOKENS = 4, 128


class Block(nn.Cell):
    """Attention and a feed-forward net, each after a norm and with a residual branch."""

    def __init__(self, width: int, heads: int, tokens: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm((width,)), nn.LayerNorm((width,))
        self.attention_in, self.attention_out = nn.Dense(width, 3 * width), nn.Dense(width, width)
        self.up, self.gelu, self.down = nn.Dense(width, 4 * width), nn.GELU(), nn.Dense(4 * width, width)
        self.hidden = Tensor(np.triu(np.full((tokens, tokens), -1e9, np.float32), 1))

    def construct(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        split = self.attention_in(self.norm1(x)).reshape(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = split.transpose(2, 0, 3, 1, 4)
        scores = ops.matmul(q, k.swapaxes(-1, -2)) / (width // self.heads) ** 0.5 + self.hidden
        mixed = ops.matmul(ops.softmax(scores, axis=-1), v)
        x = x + self.attention_out(mixed.swapaxes(1, 2).reshape(batch, tokens, width))
        return x + self.down(self.gelu(self.up(self.norm2(x))))


class GPT(nn.Cell):
    """Decoder-only transformer over bytes."""

    def __init__(self, layers: int = LAYERS, width: int = WIDTH, heads: int = HEADS, tokens: int = TOKENS) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(tokens, width)
        self.layers = nn.CellList([Block(width, heads, tokens) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm((width,)), nn.Dense(width, VOCABULARY, has_bias=False)
        self.order = Tensor(np.arange(tokens), mindspore.int32)

    def construct(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(self.order)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Training:
    """GPT with its optimizer and one batch; equal seeds give equal weights and steps."""

    def __init__(self, device: str = "cpu", seed: int = 0, **size: int) -> None:
        mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
        mindspore.set_context(device_target=device.upper())
        mindspore.set_seed(seed)
        self.model = GPT(**size).set_train()
        self.optimizer = nn.AdamWeightDecay(self.model.trainable_params(), learning_rate=1e-4)
        text = np.random.default_rng(seed).integers(VOCABULARY, size=(BATCH, TOKENS + 1))
        self._ids, self._next = Tensor(text[:, :-1], mindspore.int32), Tensor(text[:, 1:].reshape(-1), mindspore.int32)
        self._differentiate = mindspore.value_and_grad(self._loss, None, self.optimizer.parameters)

    def _loss(self) -> Tensor:
        return ops.cross_entropy(self.model(self._ids).reshape(-1, VOCABULARY), self._next)

    def step(self) -> Any:
        """Dispatch one training step."""
        loss, gradients = self._differentiate()
        self.optimizer(gradients)
        return loss


def wait(device: str) -> None:  # noqa: ARG001
    """Wait until all dispatched work is done."""
    executor.sync()
