"""DiLoCo: two ranks train each for itself, and move after each 60 updates to where they have come to on average."""

from __future__ import annotations

import torch
import torch.distributed as dist
from data import GPT, arguments, report, text
from torch.nn import functional

WORLD = 2
args = arguments()
dist.init_process_group("gloo")
rank = dist.get_rank()
model = GPT()
inner = torch.optim.AdamW(model.parameters(), lr=2e-3)
anchors = [parameter.detach().clone() for parameter in model.parameters()]
momenta = [torch.zeros_like(anchor) for anchor in anchors]
for step in range(args.steps):
    tokens = text(args.seed, 2 * step + rank)
    logits = model(tokens[:, :-1])
    loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    inner.zero_grad()
    loss.backward()
    inner.step()
    if step % 60 == 59:
        with torch.no_grad():
            for parameter, anchor, momentum in zip(model.parameters(), anchors, momenta, strict=True):
                way = anchor - parameter
                dist.all_reduce(way)
                momentum.mul_(0.5).add_(way / WORLD)
                anchor.sub_(momentum, alpha=0.6)
                parameter.copy_(anchor)
    report(step, loss)
dist.destroy_process_group()
