"""Two encoders and a temperature that is learnt, and clamped after each update as in CLIP."""

from __future__ import annotations

import math

import torch
from data import CNN, arguments, images, report
from torch import nn
from torch.nn import functional

args = arguments()
one, other = CNN(), CNN()
temperature = nn.Parameter(torch.tensor(math.log(1 / 0.07)))
model = nn.ModuleList([one, other])
model.register_parameter("temperature", temperature)
decayed = [parameter for parameter in model.parameters() if parameter.dim() > 1]
rest = [parameter for parameter in model.parameters() if parameter.dim() < 2]
groups = [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.98))
for step in range(args.steps):
    pictures = images(args.seed, step, noise=0.3)[0]
    first = functional.normalize(one(pictures + 0.1 * torch.randn_like(pictures)), dim=-1)
    second = functional.normalize(other(pictures.flip(-1)), dim=-1)
    logits = temperature.exp() * first @ second.T
    aims = torch.arange(len(logits))
    loss = (functional.cross_entropy(logits, aims) + functional.cross_entropy(logits.T, aims)) / 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    temperature.data.clamp_(0, math.log(100))
    report(step, loss)
