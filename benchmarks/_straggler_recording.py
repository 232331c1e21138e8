"""Recordings of data-parallel training in processes of which one may have more work: seconds outside of collectives."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

STEPS, BROKEN_AT = 60, 30


class Episode(NamedTuple):
    """Stretch of training; ``slow`` takes ``factor`` times its own work from step ``BROKEN_AT`` on."""

    seed: int
    slow: int | None
    factor: float


def compute(model: nn.Module, batch: torch.Tensor, factor: float) -> float:
    """Run forward and backward, and again for ``factor - 1`` times as long; return the seconds of the processor.

    Not the seconds on the clock: these processes share cores, which are taken from one or another at random.
    """
    began = time.thread_time()
    model.zero_grad()
    model(batch).square().mean().backward()
    ends = began + factor * (time.thread_time() - began)
    while factor > 1 and time.thread_time() < ends:
        torch.ones(64, 64) @ torch.ones(64, 64)
    return time.thread_time() - began


def train(rank: int, world: int, store: str, episodes: list[Episode], folder: str) -> None:
    """Run all episodes as one of ``world`` processes; write the seconds of each step."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    seconds = np.zeros((len(episodes), STEPS))
    for n, episode in enumerate(episodes):
        torch.manual_seed(episode.seed)
        model = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 32))
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        torch.manual_seed(1000 * episode.seed + rank)
        for step in range(STEPS):
            factor = episode.factor if rank == episode.slow and step >= BROKEN_AT else 1.0
            seconds[n, step] = compute(model, torch.randn(128, 128), factor)
            gradient = nn.utils.parameters_to_vector(each.grad for each in model.parameters()) / world
            dist.all_reduce(gradient)
            nn.utils.vector_to_parameters(gradient, [each.grad for each in model.parameters()])
            optimizer.step()
    np.save(Path(folder) / f"{rank}.npy", seconds)
    dist.barrier()
    dist.destroy_process_group()


def record_episodes(episodes: list[Episode], world: int = 4) -> np.ndarray:
    """Seconds outside of collectives by episode, step and rank.

    Raises:
        RuntimeError: if a process failed.
    """
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    fresh = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        arguments = (world, f"{folder}/store", episodes, folder)
        ranks = [fresh.Process(target=train, args=(rank, *arguments)) for rank in range(world)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        if any(process.exitcode for process in ranks):
            raise RuntimeError(f"exit codes of the ranks: {[process.exitcode for process in ranks]}")
        return np.stack([np.load(Path(folder) / f"{rank}.npy") for rank in range(world)], axis=-1)
