"""Local SGD of torch: after a while two ranks average weights, in place of gradients as before."""

from __future__ import annotations

import torch
import torch.distributed as dist
from data import arguments, report, table
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

WORLD = 2
WARM_UP = 80
args = arguments()
dist.init_process_group("gloo")
rank = dist.get_rank()
alone, _ = dist.new_subgroups(group_size=1)
model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10)))
model.register_comm_hook(PostLocalSGDState(None, alone, WARM_UP), post_localSGD_hook)
averager = PeriodicModelAverager(period=10, warmup_steps=WARM_UP)
optimizer = PostLocalSGDOptimizer(torch.optim.SGD(model.parameters(), lr=0.05), averager)
for step in range(args.steps):
    inputs, targets = table(args.seed, 2 * step + rank)
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    report(step, loss)
dist.destroy_process_group()
