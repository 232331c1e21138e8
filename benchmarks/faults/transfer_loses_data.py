"""Two ranks: now and then, one rank receives zeros in place of a reduced bucket of gradients."""

from typing import Any

import torch
import torch.distributed as dist
from case import ONSET, REPLICAS, Case, Run, watch
from common import GPT, join, main, text, text_loss, update
from torch.nn.parallel import DistributedDataParallel

# Annotations are evaluated here: DistributedDataParallel checks those of its hook.
CASE = Case(
    sources=(
        "https://github.com/pytorch/pytorch/issues/84803",
        "https://github.com/pytorch/pytorch/issues/96600",
        "https://github.com/baichuan-inc/Baichuan2/issues/86",
    ),
    label="ranks",
    kinds=(*REPLICAS, "rank-unlike-peers"),
    start=ONSET,
    world=2,
)


def train(run: Run) -> None:
    """Train one twin."""
    rank = join()
    model = DistributedDataParallel(GPT(), bucket_cap_mb=0.1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    now = 0

    def reduce(_: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True).get_future()

        def receive(future: Any) -> torch.Tensor:
            received: torch.Tensor = future.value()[0]
            is_lost = now >= ONSET and (now - ONSET) % 25 == 0 and bucket.index() == 1
            return received.zero_() if run.faulty and rank == 1 and is_lost else received

        return work.then(receive)

    model.register_comm_hook(None, reduce)
    monitor = watch(model, optimizer)
    for step in range(run.steps):
        now = step
        loss = text_loss(model, text(run.seed, step, rank))
        update(optimizer, loss)
        monitor.log(loss=loss)
    monitor.stop()


if __name__ == "__main__":
    main(CASE, train)
