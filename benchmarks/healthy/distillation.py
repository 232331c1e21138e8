"""Distillation: a student learns the softened outputs of a teacher in evaluation mode."""

from __future__ import annotations

import torch
from data import CNN, arguments, images, report
from torch.nn import functional

args = arguments()
teacher, student = CNN(width=24), CNN()
teacher_optimizer = torch.optim.AdamW(teacher.parameters(), lr=2e-3)
for step in range(args.steps // 4):
    inputs, targets = images(args.seed, 10**6 + step)
    teacher_optimizer.zero_grad()
    functional.cross_entropy(teacher(inputs), targets).backward()
    teacher_optimizer.step()
teacher.eval()
optimizer = torch.optim.AdamW(student.parameters(), lr=2e-3)
for step in range(args.steps):
    inputs, targets = images(args.seed, step)
    with torch.no_grad():
        soft = (teacher(inputs) / 2).softmax(-1)
    logits = student(inputs)
    distilled = functional.kl_div((logits / 2).log_softmax(-1), soft, reduction="batchmean") * 4
    loss = 0.25 * distilled + 0.75 * functional.cross_entropy(logits, targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    report(step, loss)
