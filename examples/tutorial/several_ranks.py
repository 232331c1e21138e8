"""Trains with DistributedDataParallel in two processes, of which one reads a bad sample, and names that process.

python examples/tutorial/several_ranks.py
"""

import os
import socket
from pathlib import Path

import command_line
import torch
from model import PADDING, SmallModel, batch
from pictures import heatmap, numbers
from torch import distributed, multiprocessing
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from probe.pytorch import TrainerMon

MONITOR = {
    "wg_distribution": True,
    "xy_distribution": True,
    "all_xy": True,
    "ops": ["norm", "zeros", "nans"],
    "format": ["csv"],
    "step_count_per_record": 100,
}
RANKS, EMPTY_SAMPLE, READER = 2, 12, 1
"""Number of processes; the step at which one sequence consists of padding alone, and the rank that reads it."""


def train(rank: int, port: int) -> None:
    """Trains one rank's share."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "MONITOR_OUTPUT_DIR": "ranks"}
    distributed.init_process_group("gloo", rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    model = DistributedDataParallel(SmallModel(eps=0.0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    monitor = TrainerMon(MONITOR)
    monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizer)

    for step in range(16):
        tokens, targets = batch(step * RANKS + rank)
        if step == EMPTY_SAMPLE and rank == READER:
            tokens[5] = PADDING
        loss = functional.cross_entropy(model(tokens), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    monitor.stop()
    distributed.destroy_process_group()


def main() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(train, (port,), nprocs=RANKS)
    command_line.run("anomalies", "ranks", "-k", "4")
    for rank in range(RANKS):
        (directory,) = Path("ranks").glob(f"*-rank{rank}-*")
        rows = {
            f"{signal} {name}": line
            for signal in ("actv", "grad_unreduced", "grad_reduced")
            for name, line in numbers(directory, signal, "norm").items()
            if name in ("embedding.output", "layers.0.norm.output", "output.output", "layers.0.fc1.weight")
        }
        heatmap(Path(f"several_ranks_{rank}.svg"), f"Rank {rank}: norms", rows, range(8, 16))


if __name__ == "__main__":
    main()
