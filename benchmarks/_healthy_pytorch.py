"""Healthy trainings of several kinds on PyTorch: every finding in one is a false alarm.

Each is a function of a seed and a text that returns the model, its optimizer, and a function that takes one step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from _healthy import Training, pieces
from torch import nn
from torch.nn import functional

from probe.demo import recipe
from probe.demo.pytorch.training import PytorchTraining

BYTES = 256
Schedule = Callable[[int], float]


def warm_up(steps: int) -> Schedule:
    """Schedule of a rate that rises to its value, and stays."""
    return lambda step: min(1.0, (step + 1) / steps)


def cosine(up: int, total: int) -> Schedule:
    """Schedule of a rate that rises, and falls to 0."""

    def factor(step: int) -> float:
        return min(1.0, step / up) * 0.5 * (1 + math.cos(math.pi * min(step / total, 1.0)))

    return factor


def _loop(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[], torch.Tensor],
    schedule: Schedule = lambda _: 1.0,
    clip: float | None = None,
    micro_batches: int = 1,
) -> Training:
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)

    def step() -> dict[str, float]:
        values = {"loss": 0.0, "learning_rate": rates.get_last_lr()[0]}
        for _ in range(micro_batches):
            part = loss() / micro_batches
            part.backward()
            values["loss"] += part.item()
        parameters = [each for each in model.parameters() if each.grad is not None]
        if clip is not None:
            norm = nn.utils.clip_grad_norm_(parameters, clip)
        else:
            norm = nn.utils.get_total_norm([each.grad for each in parameters])
        values["grad_norm"] = norm.item()
        optimizer.step()
        rates.step()
        optimizer.zero_grad()
        return values

    return Training(model, optimizer, step, micro_batches)


def _language(
    model: nn.Module, text: bytes, length: int, seed: int, batch: int, precision: torch.dtype | None = None
) -> Callable[[], torch.Tensor]:
    """Function that computes the loss of the next byte."""
    data = pieces(text, length, seed, batch)

    def loss() -> torch.Tensor:
        tokens, targets = (torch.from_numpy(array) for array in next(data))
        with torch.autocast("cpu", dtype=precision or torch.bfloat16, enabled=precision is not None):
            logits = model(tokens)
        return functional.cross_entropy(logits.float().flatten(0, -2), targets.flatten())

    return loss


def demo(size: recipe.Size) -> Callable[[int, bytes], Training]:
    """GPT of the demonstration, trained as there."""

    def make(seed: int, text: bytes) -> Training:
        training = PytorchTraining(size, seed)
        data = pieces(text, size.context, seed, recipe.BATCH)
        return Training(training.model, training.optimizer, lambda: training.step(*next(data)))

    return make


def gpt_bfloat16(seed: int, text: bytes) -> Training:
    """GPT under autocast, two micro batches a step, a cosine schedule."""
    model = PytorchTraining(recipe.Size(2, 96, 4, 64), seed).model
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3, betas=(0.9, 0.95), weight_decay=0.1)
    loss = _language(model, text, 64, seed, 8, torch.bfloat16)
    return _loop(model, optimizer, loss, cosine(30, 400), clip=1.0, micro_batches=2)


def gpt_pure_bfloat16(seed: int, text: bytes) -> Training:
    """GPT with parameters of bfloat16, so that small updates are rounded away element by element; norms, whose weights
    are near 1 and would not move at all, in float32, as is usual."""
    model = PytorchTraining(recipe.Size(2, 96, 4, 64), seed).model.to(torch.bfloat16)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.float()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    return _loop(model, optimizer, _language(model, text, 64, seed, 8), warm_up(50), clip=1.0)


class _Encoder(nn.Module):
    """Transformer layers of PyTorch, normalised after each half, with ReLU and dropout."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(BYTES, width), nn.Parameter(torch.zeros(length, width))
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(width, 4, 3 * width, 0.1) for _ in range(3))
        self.output = nn.Linear(width, BYTES, bias=False)
        self.output.weight = self.embedding.weight
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = (self.embedding(tokens) + self.positions).transpose(0, 1)
        for layer in self.layers:
            x = layer(x, src_mask=self.mask)
        return self.output(x.transpose(0, 1))


def encoder(seed: int, text: bytes) -> Training:
    """Post-norm transformer, tied embedding, dropout, Adam with warm-up."""
    torch.manual_seed(seed)
    model = _Encoder(64, 48)
    nn.init.normal_(model.embedding.weight, std=0.05)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    return _loop(model, optimizer, _language(model, text, 48, seed, 8), warm_up(60))


class _Recurrent(nn.Module):
    """LSTM or GRU over bytes."""

    def __init__(self, kind: type[nn.RNNBase], width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(BYTES, width)
        self.recurrent = kind(width, width, num_layers=2, batch_first=True, dropout=0.1)
        self.output = nn.Linear(width, BYTES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.output(self.recurrent(self.embedding(tokens))[0])


def lstm(seed: int, text: bytes) -> Training:
    """Adam at a constant rate, clipped."""
    torch.manual_seed(seed)
    model = _Recurrent(nn.LSTM, 96)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    return _loop(model, optimizer, _language(model, text, 32, seed, 16), clip=1.0)


def gru(seed: int, text: bytes) -> Training:
    """RMSprop, unclipped, two micro batches a step."""
    torch.manual_seed(seed)
    model = _Recurrent(nn.GRU, 64)
    optimizer = torch.optim.RMSprop(model.parameters(), 1e-3)
    return _loop(model, optimizer, _language(model, text, 24, seed, 8), warm_up(20), micro_batches=2)


class _NextByte(nn.Module):
    """Prediction of the byte after eight others, with layers of ReLU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(BYTES, 16)
        sizes = [128, width, width, width]
        hidden = [[nn.Linear(a, b), nn.ReLU(), nn.Dropout(0.1)] for a, b in pairwise(sizes)]
        self.hidden = nn.Sequential(*[module for each in hidden for module in each])
        self.output = nn.Linear(width, BYTES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.output(self.hidden(self.embedding(tokens).flatten(1)))


def mlp(seed: int, text: bytes) -> Training:
    """ReLU, SGD with momentum, weight decay, no clipping."""
    torch.manual_seed(seed)
    model, data = _NextByte(128), pieces(text, 8, seed, 64)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)

    def loss() -> torch.Tensor:
        tokens, targets = (torch.from_numpy(array) for array in next(data))
        return functional.cross_entropy(model(tokens), targets[:, -1])

    return _loop(model, optimizer, loss, cosine(20, 350))


WORDS = 8192


def words(seed: int, text: bytes) -> Training:
    """Large embedding of which each step touches few rows, AdamW; words by the hash of their bytes."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.EmbeddingBag(WORDS, 48), nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, WORDS))
    found = text.split()[:200_000]
    ids = np.array([hash_of(word) for word in found], dtype=np.int64)
    random = np.random.default_rng([seed, 0x3D])
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)

    def loss() -> torch.Tensor:
        at = random.integers(len(ids) - 5, size=(32, 1)) + np.arange(5)
        context = torch.from_numpy(ids[at])
        return functional.cross_entropy(model(context[:, :4]), context[:, 4])

    return _loop(model, optimizer, loss, warm_up(30))


def hash_of(word: bytes) -> int:
    """Hash that is the same in every process, unlike Python's own."""
    return int.from_bytes(word[-7:], "little") * 2654435761 % 2**61 % WORDS


def convolutions(seed: int, text: bytes) -> Training:  # noqa: ARG001 - its images are drawn
    """Classification of ten patterns in noisy images: batch normalisation, ReLU, pooling, SGD with momentum."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for before, after in ((1, 12), (12, 24), (24, 32)):
        layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        layers.append(nn.MaxPool2d(2))
    model = nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.2), nn.Linear(32 * 4, 10))
    patterns = torch.randn(10, 1, 16, 16)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)

    def loss() -> torch.Tensor:
        labels = torch.randint(10, (32,))
        images = patterns[labels].roll(tuple(torch.randint(-2, 3, (2,)).tolist()), (2, 3))
        return functional.cross_entropy(model(images + 1.5 * torch.randn(images.shape)), labels)

    return _loop(model, optimizer, loss, cosine(10, 350))


def regression(seed: int, text: bytes) -> Training:  # noqa: ARG001 - its numbers are drawn
    """Net that learns another one's function until next to nothing is left to learn, with a rate that falls to 0."""
    torch.manual_seed(seed)
    teacher = nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3))
    model = nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 3))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    inputs = torch.randn(64, 12)
    targets = teacher(inputs).detach()
    return _loop(model, optimizer, lambda: functional.mse_loss(model(inputs), targets), cosine(10, 400))


class _Adapted(nn.Module):
    """Frozen linear map, plus a narrow one that learns and starts at zero (Hu et al., 2021)."""

    def __init__(self, linear: nn.Linear, narrow: int) -> None:
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(narrow, linear.in_features) / math.sqrt(linear.in_features))
        self.up = nn.Parameter(torch.zeros(linear.out_features, narrow))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + functional.linear(functional.linear(x, self.down), self.up)


def adapters(seed: int, text: bytes) -> Training:
    """Frozen GPT with low-rank adapters, AdamW, a rate that starts at zero."""
    model = PytorchTraining(recipe.Size(2, 64, 4, 48), seed).model.requires_grad_(False)
    torch.manual_seed(seed)
    for layer in model.layers:
        layer.attention.qkv, layer.mlp.fc1 = _Adapted(layer.attention.qkv, 4), _Adapted(layer.mlp.fc1, 4)
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], 5e-3)
    return _loop(model, optimizer, _language(model, text, 48, seed, 8), cosine(40, 400))


TRAININGS: dict[str, Callable[[int, bytes], Training]] = {
    "gpt": demo(recipe.Size()),
    "gpt deep": demo(recipe.Size(6, 64, 4, 48)),
    "gpt wide": demo(recipe.Size(1, 256, 8, 32)),
    "gpt bfloat16 autocast": gpt_bfloat16,
    "gpt bfloat16": gpt_pure_bfloat16,
    "encoder": encoder,
    "lstm": lstm,
    "gru": gru,
    "mlp": mlp,
    "words": words,
    "convolutions": convolutions,
    "regression": regression,
    "adapters": adapters,
}
"""Trainings that are assumed to be healthy."""
