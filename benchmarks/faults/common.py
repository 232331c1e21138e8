"""Models, data and the three lines that the cases on PyTorch share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
import torch.distributed as dist
from case import Case, Run, arguments
from torch import Tensor, nn
from torch.nn import functional

DEVICE = os.environ.get("FINDING_DEVICE", "cpu")
"""Device on which all tensors are made."""
if DEVICE != "cpu":
    torch.set_default_device(DEVICE)

VOCABULARY, LENGTH = 64, 32
CLASSES, SIDE = 10, 12


def main(case: Case, train: Callable[[Run], None]) -> None:
    """Train as the command line asks, in one thread, from the seed."""
    run = arguments(case)
    torch.set_num_threads(1)
    torch.manual_seed(run.seed)
    train(run)
    if dist.is_initialized():
        dist.destroy_process_group()


def join() -> int:
    """Join the processes of the run; return the rank."""
    dist.init_process_group("gloo")
    return dist.get_rank()


class Core(nn.Module):
    """Attention proper: query, key and value of shape (batch, heads, tokens, width of a head)."""

    is_causal = True

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend, to earlier tokens only if causal."""
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        if self.is_causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, float("-inf"))
        return scores.softmax(-1) @ value


class Attention(nn.Module):
    """Attention of several heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.core = Core()

    def forward(self, x: Tensor) -> Tensor:
        """Attend, and project."""
        batch, tokens, width = x.shape
        q, k, v = (f(x).view(batch, tokens, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        return self.o(self.core(q, k, v).transpose(1, 2).reshape(batch, tokens, width))


class MLP(nn.Module):
    """Two layers, four times as wide between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Apply both layers."""
        return self.down(self.act(self.up(x)))


class Block(nn.Module):
    """Block of a transformer with norms first."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.ln1, self.attn = nn.LayerNorm(width), Attention(width, heads)
        self.ln2, self.mlp = nn.LayerNorm(width), MLP(width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Add attention, then the layers."""
        x = x + self.drop(self.attn(self.ln1(x)))
        return x + self.drop(self.mlp(self.ln2(x)))


class GPT(nn.Module):
    """Small decoder."""

    def __init__(
        self, layers: int = 2, width: int = 48, heads: int = 4, dropout: float = 0, tied: bool = False
    ) -> None:
        super().__init__()
        self.embed, self.pos = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
        self.layers = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)
        for table in (self.embed, self.pos, self.head):
            nn.init.normal_(table.weight, std=0.05)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of each next token."""
        x = self.embed(tokens) + self.pos(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class CNN(nn.Module):
    """Small convolutional net with batch norm, or with none."""

    def __init__(self, width: int = 12, dropout: float = 0, norm: bool = True, bias: bool = True) -> None:
        super().__init__()
        kind: Any = nn.BatchNorm2d if norm else nn.Identity
        wide = 2 * width
        self.conv1, self.bn1, self.relu1 = nn.Conv2d(3, width, 3, 1, 1, bias=bias), kind(width), nn.ReLU()
        self.conv2, self.bn2, self.relu2 = nn.Conv2d(width, wide, 3, 2, 1, bias=bias), kind(wide), nn.ReLU()
        self.conv3, self.bn3, self.relu3 = nn.Conv2d(wide, wide, 3, 2, 1, bias=bias), kind(wide), nn.ReLU()
        self.drop, self.fc = nn.Dropout(dropout), nn.Linear(wide, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the classes."""
        x = self.relu1(self.bn1(self.conv1(x)))
        x = self.relu2(self.bn2(self.conv2(x)))
        x = self.relu3(self.bn3(self.conv3(x)))
        return self.fc(self.drop(x.mean((2, 3))))


_FOLLOWERS = torch.randint(0, VOCABULARY, (VOCABULARY, 4), generator=torch.Generator(DEVICE).manual_seed(11))
_PICTURES = torch.randn(CLASSES, 3, SIDE, SIDE, generator=torch.Generator(DEVICE).manual_seed(5))


def generator(*numbers: int) -> torch.Generator:
    """Random generator of a batch, by numbers such as seed, step and rank."""
    seed = 0
    for number in numbers:
        seed = 1_000_003 * seed + number + 1
    return torch.Generator(DEVICE).manual_seed(seed % (1 << 62))


def text(seed: int, step: int, rank: int = 0, batch: int = 8, length: int = LENGTH + 1) -> Tensor:
    """Batch of a Markov chain: each token has four likely followers, and one in ten is anything."""
    random = generator(seed, step, rank)
    choices = torch.randint(0, 4, (batch, length), generator=random)
    tokens = torch.randint(0, VOCABULARY, (batch, length), generator=random)
    follows = torch.rand(batch, length, generator=random) >= 0.1
    for n in range(1, length):
        tokens[:, n] = torch.where(follows[:, n], _FOLLOWERS[tokens[:, n - 1], choices[:, n]], tokens[:, n])
    return tokens


def text_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    """Cross entropy of each next token."""
    return functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())


def images(seed: int, step: int, rank: int = 0, batch: int = 32, noise: float = 1.5) -> tuple[Tensor, Tensor]:
    """Noisy pictures of ten classes, and their classes."""
    random = generator(seed, step, rank)
    classes = torch.randint(0, CLASSES, (batch,), generator=random)
    return _PICTURES[classes] + noise * torch.randn(batch, 3, SIDE, SIDE, generator=random), classes


def image_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Cross entropy of the classes."""
    return functional.cross_entropy(model(batch[0]), batch[1])


def update(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """Go back from ``loss``, and update from gradients that began at nothing."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
