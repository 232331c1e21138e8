"""Train a small GPT on eight ranks under the monitor and keep its numbers.

``python -m tests.resources.record_training``

Rank 5 is slower from the middle on. The file that it writes is the training that dashboards are tested with.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from probe.core.storage.directories import find
from probe.core.storage.problems import Problems

ROOT = Path(__file__).parents[2]
RECORDED = Path(__file__).parent / "recorded" / "training.json"
RANKS, STEPS, SAMPLED = 8, 60, 5
SLOW, SLOW_FROM = 5, 35
BATCH, TOKENS, RATE = 4, 64, 1e-2
SIGNALS, OPS = ("grad_reduced", "param_origin"), ("norm", "max", "nans", "infs")
CONFIGURATION = {
    "wg_distribution": True,
    "param_distribution": True,
    "cc_distribution": {"enable": True, "cc_codeline": [], "cc_pre_hook": True, "cc_log_only": False},
    "run": {"enable": True, "flops_per_step": 6 * 120_000 * BATCH * TOKENS},
    "format": "csv",
    "ops": list(OPS),
}


def main() -> None:
    """Start all ranks in processes of their own and write their numbers."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"PYTHONPATH": str(ROOT), "MONITOR_OUTPUT_DIR": folder, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "tests.resources.record_training", folder]
        ranks = [subprocess.Popen([*command, str(rank)], env=environment, cwd=ROOT) for rank in range(RANKS)]
        assert [process.wait() for process in ranks] == [0] * RANKS
        recorded = {
            "steps": STEPS,
            "runs": [run_numbers(Path(folder), rank) for rank in range(RANKS)],
            "tensors": {signal: tensors(Path(folder), signal) for signal in SIGNALS},
        }
    RECORDED.write_text(json.dumps(recorded, separators=(",", ":")).replace('"runs"', '\n"runs"') + "\n", "utf-8")


def run_numbers(folder: Path, rank: int) -> dict[str, list[float | None]]:
    """Values of each number of the run by step; none in steps without it."""
    found: dict[str, list[float | None]] = {}
    for row in rows(folder, "run", rank):
        found.setdefault(row["name"], [None] * STEPS)[int(row["step"])] = rounded(row["value"])
    return found


def tensors(folder: Path, signal: str) -> dict[str, dict[str, list[float]]]:
    """Values of the ops of each layer of the first rank, in every fifth step."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows(folder, signal, 0):
        if int(row["step"]) % SAMPLED == 0:
            for op in OPS:
                found.setdefault(row["name"], {}).setdefault(op, []).append(rounded(row[op]))
    return found


def rows(folder: Path, signal: str, rank: int) -> Iterator[dict[str, str]]:
    """Yield the rows of a signal of a rank by ascending step."""
    (directory,) = (each.path for each in find(folder, Problems()) if each.rank == rank)
    for path in sorted(directory.glob(f"{signal}_*.csv"), key=lambda path: int(path.stem.split("_")[-1].split("-")[0])):
        with path.open(encoding="utf-8") as file:
            yield from csv.DictReader(file)


def rounded(text: str) -> float:
    return float(f"{float(text):.4g}")


def rank_program(folder: Path, rank: int) -> None:
    """Train as one rank: the gradients of all are averaged by one collective a step."""
    import torch
    import torch.distributed as dist
    from torch.nn import functional

    from benchmarks._gpt import GPT
    from probe.pytorch import TrainerMon

    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    model = GPT(layers=2, width=48, heads=4, tokens=TOKENS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=STEPS + 1, pct_start=0.2)
    configuration = folder / f"monitor_{rank}.json"
    configuration.write_text(json.dumps(CONFIGURATION), "utf-8")
    monitor = TrainerMon(str(configuration))
    monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizer)
    text = torch.tensor(list((ROOT / "README.md").read_bytes()), dtype=torch.long)
    torch.manual_seed(rank)

    def losses() -> tuple[torch.Tensor, torch.Tensor]:
        with monitor.phase("data"):
            places = torch.randint(len(text) - TOKENS - 1, (BATCH,)).tolist()
            rows = torch.stack([text[place : place + TOKENS + 1] for place in places])
        logits = model(rows[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        return loss, (logits.argmax(-1) == rows[:, 1:]).float().mean()

    for step in range(STEPS):
        time.sleep(0.3 if rank == SLOW and step >= SLOW_FROM else 0)
        optimizer.zero_grad()
        loss, _ = losses()
        loss.backward()
        gradients = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        dist.all_reduce(gradients)
        torch.nn.utils.vector_to_parameters(gradients / RANKS, [each.grad for each in model.parameters()])
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        monitor.log(loss=loss, grad_norm=norm, batch_size=BATCH, tokens=BATCH * TOKENS, loss_scale=1024.0)
        monitor.log(loss_by_norm=loss / norm)
        if step % SAMPLED == 0:
            with monitor.phase("evaluation"), torch.no_grad():
                loss, accuracy = losses()
            monitor.log(val_loss=loss, accuracy=accuracy)
        optimizer.step()
        schedule.step()
    dist.barrier()
    monitor.stop()


if __name__ == "__main__":
    main() if len(sys.argv) == 1 else rank_program(Path(sys.argv[1]), int(sys.argv[2]))
