"""Plain training loop on PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn import functional

from probe.demo.recipe import BYTES, LEARNING_RATE, LONGEST_GRADIENT, Bytes, Size, initial_weights, warm_up


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.qkv = nn.Linear(size.width, 3 * size.width)
        self.projection = nn.Linear(size.width, size.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        heads = self.qkv(x).view(batch, time, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        projected: torch.Tensor = self.projection(mixed.transpose(1, 2).reshape(batch, time, width))
        return projected


class Mlp(nn.Module):
    """Feed-forward net: two linear maps with a GELU between them."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.fc1 = nn.Linear(size.width, 4 * size.width)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(4 * size.width, size.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.fc2(self.act(self.fc1(x)))
        return hidden


class Layer(nn.Module):
    """Transformer layer, normalised before each half."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(size.width)
        self.attention = Attention(size)
        self.norm2 = nn.LayerNorm(size.width)
        self.mlp = Mlp(size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    """Map bytes ``(batch, time)`` to logits ``(batch, time, 256)``."""

    def __init__(self, size: Size, seed: int = 0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(BYTES, size.width)
        self.positions = nn.Embedding(size.context, size.width)
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))
        self.final_norm = nn.LayerNorm(size.width)
        self.output = nn.Linear(size.width, BYTES)
        _initialise(self, size.layers, seed)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        logits: torch.Tensor = self.output(self.final_norm(x))
        return logits


def _initialise(model: nn.Module, layers: int, seed: int) -> None:
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    weights = initial_weights(shapes, layers, seed)
    model.load_state_dict({name: torch.from_numpy(values) for name, values in weights.items()})


class PytorchTraining:
    """Training with AdamW, warm-up and clipping."""

    def __init__(self, size: Size, seed: int) -> None:
        self.model = Gpt(size, seed)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE)
        self._schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, warm_up)

    def step(self, tokens: Bytes, targets: Bytes, log: Callable[..., None]) -> float:
        logits = self.model(torch.from_numpy(tokens))
        loss = functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(targets).flatten())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), LONGEST_GRADIENT)
        log(loss=loss, grad_norm=norm)
        self.optimizer.step()
        self._schedule.step()
        self.optimizer.zero_grad()
        return loss.item()


@contextmanager
def few_threads() -> Iterator[None]:
    """Limit torch to one thread: on shared cores, a small model takes ten times as long with threads that wait for each
    other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
