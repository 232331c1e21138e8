"""Tensor parallelism by hand, as Megatron-LM does it: columns, rows, and replicated norms and embeddings."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from common import LENGTH, VOCABULARY
from torch import Tensor, nn
from torch.nn import functional


class _Copy(torch.autograd.Function):
    """Identity whose gradients are summed over the ranks."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient


class _Sum(torch.autograd.Function):
    """Sum over the ranks whose gradients are passed on as they are."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return gradient


class SplitBlock(nn.Module):
    """Block whose heads and inner columns are divided among the ranks."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        world = dist.get_world_size()
        self.heads = heads // world
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width // world), nn.Linear(width // world, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width // world), nn.Linear(4 * width // world, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Add attention, then the layers."""
        y = self.qkv(_Copy.apply(self.ln1(x)))
        batch, tokens, _ = y.shape
        q, k, v = y.view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, tokens, -1)
        x = x + _Sum.apply(self.proj(y))
        return x + _Sum.apply(self.down(functional.gelu(self.up(_Copy.apply(self.ln2(x))))))


class SplitGPT(nn.Module):
    """Decoder of such blocks; the rest is the same on all ranks."""

    def __init__(self, width: int = 48, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.embed, self.pos = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
        self.layers = nn.ModuleList(SplitBlock(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of each next token."""
        x = self.embed(tokens) + self.pos(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def is_replicated(name: str) -> bool:
    """Return whether all ranks hold this parameter alike."""
    return not any(part in name for part in ("qkv", "proj", "up.", "down"))


def build(seed: int) -> SplitGPT:
    """Return a model whose parts differ between ranks and whose other parameters are alike."""
    model = SplitGPT()
    torch.manual_seed(1000 * seed + 100 + dist.get_rank())
    for name, parameter in model.named_parameters():
        if is_replicated(name):
            dist.broadcast(parameter.data, 0)
        elif parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.1)
    return model


def gradient_norm(model: nn.Module) -> Tensor:
    """Norm of the whole gradient: parts summed over the ranks, replicas counted once."""
    squares = {True: torch.zeros(()), False: torch.zeros(())}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            squares[is_replicated(name)] += (parameter.grad**2).sum()
    dist.all_reduce(squares[False])
    return (squares[True] + squares[False]).sqrt()
