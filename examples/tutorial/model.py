"""The model and the data of the tutorials: some seconds of training on a CPU.

A sequence of eight tokens contains one token four times; the model learns to name it.
"""

import torch
from torch import nn

TOKENS, LENGTH, WIDTH, DEPTH = 32, 8, 48, 3
PADDING = 0


class Norm(nn.Module):
    """Mean 0 and standard deviation 1 over the last dimension."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + self.eps).sqrt()


class Block(nn.Module):
    """A residual block: ``x + fc2(act(fc1(norm(x))))``."""

    def __init__(self, eps: float, gelu: str) -> None:
        super().__init__()
        self.norm = Norm(eps)
        self.fc1 = nn.Linear(WIDTH, 4 * WIDTH)
        self.act = nn.GELU(approximate=gelu)
        self.fc2 = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.fc2(self.act(self.fc1(self.norm(x))))


class SmallModel(nn.Module):
    """Tokens ``(batch, LENGTH)`` in, logits ``(batch, TOKENS)`` out."""

    def __init__(self, eps: float = 1e-5, gelu: str = "none") -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH, padding_idx=PADDING)
        self.layers = nn.ModuleList(Block(eps, gelu) for _ in range(DEPTH))
        self.output = nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens).mean(1)
        for layer in self.layers:
            x = layer(x)
        return self.output(x)


def batch(step: int, size: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    """The sequences of a step and the token that each contains four times: the same in every run."""
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(1, TOKENS, (size, LENGTH), generator=generator)
    targets = torch.randint(1, TOKENS, (size,), generator=generator)
    tokens[:, : LENGTH // 2] = targets[:, None]
    return tokens, targets
