"""Large embedding with sparse gradients and an optimizer for them, beside a dense one."""

from __future__ import annotations

import torch
from data import arguments, generator, report
from torch import nn

LONG = True
WORDS, WIDTH = 5000, 16

args = arguments()
embedding = nn.EmbeddingBag(WORDS, WIDTH, sparse=True)
head = nn.Linear(WIDTH, 4)
model = nn.Sequential(embedding, head)
sparse = torch.optim.SparseAdam(list(embedding.parameters()), lr=1e-2)
dense = torch.optim.Adam(head.parameters(), lr=1e-3)
criterion = nn.CrossEntropyLoss()
for step in range(args.steps):
    random = generator(args.seed, step)
    words = (WORDS * torch.rand(32, 8, generator=random) ** 4).long()
    labels = words.amin(1) % 4
    sparse.zero_grad()
    dense.zero_grad()
    loss = criterion(model(words), labels)
    loss.backward()
    sparse.step()
    dense.step()
    report(step, loss)
