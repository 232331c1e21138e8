"""Two tensor-parallel ranks of which one alone clips: norms and embeddings drift apart (BLOOM)."""

from __future__ import annotations

import torch
import torch.distributed as dist
from case import REPLICAS, Case, Run, watch
from common import join, main, text, text_loss
from tensor_parallel import build, gradient_norm

CASE = Case(
    sources=(
        "https://github.com/bigscience-workshop/bigscience/blob/master/train/tr11-176B-ml/chronicles.md",
        "https://github.com/deepspeedai/DeepSpeed/pull/1801",
        "https://arxiv.org/abs/2506.14813",
    ),
    label="ranks",
    kinds=REPLICAS,
    where=("*ln1*", "*ln2*", "*norm*", "*embed*", "*pos*", "*head*"),
    world=2,
)


def train(run: Run) -> None:
    """Train one twin."""
    rank = join()
    model = build(run.seed)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    groups = [dist.new_group([other]) for other in range(dist.get_world_size())]
    monitor = watch(model, optimizer, tp_group=dist.group.WORLD, dp_group=groups[rank])
    for step in range(run.steps):
        loss = text_loss(model, text(run.seed, step))
        optimizer.zero_grad()
        loss.backward()
        scale = (0.3 / gradient_norm(model)).clamp(max=1)
        if rank == 0 or not run.faulty:
            for parameter in model.parameters():
                parameter.grad.mul_(scale)
        optimizer.step()
        monitor.log(loss=loss)
    monitor.stop()


if __name__ == "__main__":
    main(CASE, train)
