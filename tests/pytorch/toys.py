"""Small models for the tests, and the numbers that must come out of them."""

from __future__ import annotations

from typing import Any

from tests.required import require

torch = require("torch")

X = torch.tensor([[1.0, 1.0], [0.0, -1.0]])
"""Input of :class:`TinyNet`; micro batch ``a`` is ``X * (a + 1)``."""


class TinyNet(torch.nn.Module):
    """Two linear layers around a ReLU, with weights that can be followed on paper."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(2, 3)
        self.relu = torch.nn.ReLU(inplace)
        self.fc2 = torch.nn.Linear(3, 1, bias=False)
        with torch.no_grad():
            self.fc.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0], [-1.0, -2.0]]))
            self.fc.bias.copy_(torch.tensor([0.5, -0.5, 0.0]))
            self.fc2.weight.copy_(torch.tensor([[1.0, -1.0, 2.0]]))

    def forward(self, x: Any) -> Any:
        return self.fc2(self.relu(self.fc(x)))


class Attention(torch.nn.Module):
    """Causal self-attention."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.proj = torch.nn.Linear(width, width)
        self.drop = torch.nn.Dropout(dropout)

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.drop(self.proj(seen.transpose(1, 2).reshape(batch, length, width)))


class Block(torch.nn.Module):
    """Attention and a feed-forward net, each on a residual branch."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)
        self.act = torch.nn.GELU()
        self.drop = torch.nn.Dropout(dropout)

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.norm1(x))
        return x + self.drop(self.down(self.act(self.up(self.norm2(x)))))


class SmallGPT(torch.nn.Module):
    """A language model of a few thousand parameters.

    Args:
        checkpoint: None, ``"reentrant"`` or ``"non-reentrant"``: activation checkpointing of every block.
        tied: whether the last layer shares the embedding's weight.
    """

    def __init__(
        self,
        *,
        layers: int = 2,
        dropout: float = 0.0,
        checkpoint: str | None = None,
        tied: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        vocabulary, width, heads = 17, 16, 2
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.tokens, self.positions = torch.nn.Embedding(vocabulary, width), torch.nn.Embedding(32, width)
            self.drop = torch.nn.Dropout(dropout)
            self.layers = torch.nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
            self.norm, self.head = torch.nn.LayerNorm(width), torch.nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.tokens.weight
        self.checkpoint = checkpoint

    def forward(self, tokens: Any) -> Any:
        x = self.drop(self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1])))
        for layer in self.layers:
            if self.checkpoint is None:
                x = layer(x)
            else:
                x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=self.checkpoint == "reentrant")
        return self.head(self.norm(x))


def token_batch(seed: int = 0, batch: int = 3, length: int = 8, vocabulary: int = 17) -> Any:
    """Random tokens that leave torch's own generator alone."""
    return torch.randint(vocabulary, (batch, length), generator=torch.Generator().manual_seed(seed))


def language_loss(model: Any, tokens: Any) -> Any:
    """Cross entropy of the next token."""
    logits = model(tokens[:, :-1])
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


class Product(torch.nn.Module):
    """One parameter of zeros, times the input: its gradient under a sum is the input."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(shape))

    def forward(self, x: Any) -> Any:
        return self.w * x
