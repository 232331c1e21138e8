"""Model that the benchmarks train: a GPT of 12 layers and width 256 with 149 parameter tensors."""

from __future__ import annotations

from typing import cast

import torch
from torch import nn
from torch.nn import functional

LAYERS, WIDTH, HEADS, VOCABULARY = 12, 256, 4, 256
BATCH, TOKENS = 4, 128


class Block(nn.Module):
    """Attention and a feed-forward net, each after a norm and with a residual branch."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention_in, self.attention_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.gelu, self.down = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.attention_in(self.norm1(x)).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return cast(torch.Tensor, x + self.down(self.gelu(self.up(self.norm2(x)))))


class GPT(nn.Module):
    """Decoder-only transformer over bytes."""

    def __init__(self, layers: int = LAYERS, width: int = WIDTH, heads: int = HEADS, tokens: int = TOKENS) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(tokens, width)
        self.layers = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = layer(x)
        return cast(torch.Tensor, self.head(self.norm(x)))


class Training:
    """GPT with its optimizer and one batch; equal seeds give equal weights and steps."""

    def __init__(self, device: str = "cpu", seed: int = 0, micro_batches: int = 1, **size: int) -> None:
        torch.manual_seed(seed)
        self.model = GPT(**size).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        tokens = self.model.positions.num_embeddings
        self._text = torch.randint(VOCABULARY, (micro_batches, BATCH, tokens + 1), device=device)

    def step(self) -> None:
        """Take one training step, without waiting for the device."""
        for text in self._text:
            logits = self.model(text[:, :-1])
            functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def wait(device: str) -> None:
    """Wait until the device has finished all work."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
