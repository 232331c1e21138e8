from collections import OrderedDict

import torch
from torch import nn

torch.manual_seed(0)
layers = OrderedDict(
    embed=nn.Embedding(64, 32, padding_idx=0),
    fc1=nn.Linear(32, 64, bias=False),
    act=nn.GELU(),
    norm=nn.RMSNorm(64, eps=0.0),
    fc2=nn.Linear(64, 64),
    head=nn.Linear(64, 64),
)
model = nn.Sequential(layers)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(60):
    tokens = torch.randint(1, 64, (8, 16))
    if step == 41:
        tokens[3] = 0  # a sentence of nothing but padding: its norm divides 0 by 0
    loss = nn.functional.cross_entropy(model(tokens).transpose(1, 2), (tokens + 1) % 64)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
