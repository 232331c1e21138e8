"""Two ranks of Accelerate with accumulation and a prepared schedule that was made for the steps of all ranks."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from data import GPT, arguments, report, text
from torch.nn import functional

WORLD = 2
args = arguments()
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps * accelerator.num_processes)
model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
for step in range(2 * args.steps):
    with accelerator.accumulate(model):
        tokens = text(args.seed, step, accelerator.process_index, batch=4)
        loss = functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    report(step, loss)
accelerator.end_training()
