"""Half precision with a gradient scaler whose first factor is too large, as usual, and that tries larger ones."""

from __future__ import annotations

import torch
from data import CLASSES, arguments, report, table
from torch import nn

LONG = True
args = arguments()
net = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, CLASSES))
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
loss_fn = nn.CrossEntropyLoss()
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22, growth_interval=100)
for step in range(args.steps):
    inputs, targets = table(args.seed, step)
    with torch.autocast(device_type="cpu", dtype=torch.float16):
        output = net(inputs)
        loss = loss_fn(output, targets)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm=1.0)
    scaler.step(opt)
    scaler.update()
    opt.zero_grad()
    report(step, loss)
