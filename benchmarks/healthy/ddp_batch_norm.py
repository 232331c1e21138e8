"""Two ranks under DistributedDataParallel with batch norm, whose buffers differ between broadcasts."""

from __future__ import annotations

import torch
import torch.distributed as dist
from data import CNN, arguments, images, report
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

WORLD = 2
args = arguments()
dist.init_process_group("gloo")
rank = dist.get_rank()
ddp_model = DistributedDataParallel(CNN(dropout=0.1), broadcast_buffers=False)
optimizer = torch.optim.AdamW(ddp_model.parameters(), lr=2e-3)
torch.manual_seed(1000 * args.seed + rank)
for step in range(args.steps):
    inputs, targets = images(args.seed, step, rank)
    optimizer.zero_grad()
    loss = functional.cross_entropy(ddp_model(inputs), targets)
    loss.backward()
    optimizer.step()
    report(step, loss)
dist.destroy_process_group()
