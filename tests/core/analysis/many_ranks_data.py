"""A run of very many ranks, written as text at once: two stages, hosts of eight ranks, groups of replicas."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

NAMES = ("layers.0.weight", "layers.0.bias", "layers.1.weight")
HOST_SIZE = 8
TENSOR_PARALLEL = 4
Norm = Callable[[int, int, int], float]
"""Norm of a rank's tensor at a step, by rank, step and index of the name."""


def usual(rank: int, step: int, row: int) -> float:
    """Equal on replicas; of six digits at most."""
    return float(f"{(1 + row) * (1 + rank % TENSOR_PARALLEL) * (1 + step / 16):.6g}")


def usual_seconds(rank: int, _: int) -> float:
    return 1 + rank % 8 / 1000


def replicas(rank: int, ranks: int) -> list[int]:
    """Ranks that hold the same part of the model."""
    half = ranks // 2
    first = rank // half * half
    return list(range(first + rank % TENSOR_PARALLEL, first + half, TENSOR_PARALLEL))


def write_many_ranks(
    root: Path,
    ranks: int,
    steps: int = 6,
    norm: Norm = usual,
    seconds: Callable[[int, int], float] = usual_seconds,
    names: tuple[str, ...] = NAMES,
) -> list[Path]:
    """Write the directories of ``ranks`` ranks (a multiple of eight) with ``grad_reduced`` and the seconds of steps."""
    groups: dict[int, list[int]] = {}
    directories = []
    for rank in range(ranks):
        directory = root / f"Dec03_21-34-40-rank{rank}-{rank:08x}"
        directory.mkdir(parents=True)
        own = replicas(rank, ranks)
        about: dict[str, Any] = {
            "schema": 1, "rank": rank, "world_size": ranks, "framework": "pytorch", "pp_stage": rank // (ranks // 2),
            "run": 0, "first_step": 0, "start_time": "2026-12-03T21:34:40+0000",
            "host": f"<b>node{rank // HOST_SIZE}</b>", "groups": {"data_parallel": groups.setdefault(own[0], own)},
        }  # fmt: skip
        (directory / "manifest.json").write_text(json.dumps(about))
        rows = [
            f"0,{name},{step},{norm(rank, step, row):.6g},[4],float32\n"
            for step in range(steps)
            for row, name in enumerate(names)
        ]
        (directory / f"grad_reduced_0-{steps - 1}.csv").write_text(
            f"vpp_stage,name,step,norm,shape,dtype\n{''.join(rows)}"
        )
        numbers = [f"0,step_seconds,{step},{seconds(rank, step):.6g}\n" for step in range(steps)]
        (directory / f"run_0-{steps - 1}.csv").write_text(f"vpp_stage,name,step,value\n{''.join(numbers)}")
        directories.append(directory)
    return directories
