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
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECORDED = Path(__file__).parent / "recorded" / "training.json"
RANKS, STEPS, SAMPLED = 8, 60, 5
SLOW, SLOW_FROM = 5, 35
BATCH, TOKENS = 4, 64
NUMBERS = (
    "loss", "grad_norm", "learning_rate", "loss_scale", "batch_size", "tokens", "val_loss", "accuracy", "step_seconds",
    "outside_seconds", "throughput", "tokens_per_second", "model_tflops", "skipped", "phase/data_seconds",
    "phase/evaluation_seconds", "gradient_noise",
)  # fmt: skip
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
    """Values of each number of the run by step; none where the program logged none."""
    found: dict[str, list[float | None]] = {}
    for path in folder.rglob("run_*.csv"):
        if f"rank{rank}" not in str(path):
            continue
        for row in csv.DictReader(path.open()):
            name = next(value for key, value in row.items() if key in {"name", "vpp_stage", "number"} and value)
            found.setdefault(name, [None] * STEPS)[int(row["step"])] = rounded(row["value"])
    return found


def tensors(folder: Path, signal: str) -> dict[str, dict[str, list[float]]]:
    """Values of the ops of each layer of rank 0, in every fifth step."""
    found: dict[str, dict[str, list[float]]] = {}
    return found


def rounded(text: str) -> float:
    return float(f"{float(text):.4g}")


def rank_program(folder: Path, rank: int) -> None:
    """Train as one rank."""
    import torch
    import torch.distributed as dist
    from torch.nn import functional
    from torch.nn.parallel import DistributedDataParallel

    from benchmarks._gpt import GPT
    from probe import TrainerMon

    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    model = DistributedDataParallel(GPT(layers=2, width=48, heads=4, tokens=TOKENS))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=STEPS + 1, pct_start=0.2)
    configuration = folder / f"monitor_{rank}.json"
    configuration.write_text(json.dumps(CONFIGURATION), "utf-8")
    monitor = TrainerMon(str(configuration))
    monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizer)
    text = torch.tensor(list((ROOT / "README.md").read_bytes()), dtype=torch.long)
    torch.manual_seed(rank)

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        places = torch.randint(len(text) - TOKENS - 1, (BATCH,)).tolist()
        rows = torch.stack([text[place : place + TOKENS + 1] for place in places])
        return rows[:, :-1], rows[:, 1:]

    def loss_of(ids: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = model(ids)
        loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return loss, (logits.argmax(-1) == targets).float().mean()

    for step in range(STEPS):
        with monitor.phase("data"):
            ids, targets = batch()
        if rank == SLOW and step >= SLOW_FROM:
            time.sleep(0.1)
        loss, _ = loss_of(ids, targets)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        monitor.log(loss=loss, grad_norm=norm, batch_size=BATCH, tokens=BATCH * TOKENS, loss_scale=1024.0)
        monitor.log(gradient_noise=norm / loss)
        if step % 5 == 0:
            with monitor.phase("evaluation"), torch.no_grad():
                val_loss, accuracy = loss_of(*batch())
            monitor.log(val_loss=val_loss, accuracy=accuracy)
        optimizer.step()
        schedule.step()
    dist.barrier()
    monitor.stop() if hasattr(monitor, "stop") else None


if __name__ == "__main__":
    rank_program(Path(sys.argv[1]), int(sys.argv[2])) if len(sys.argv) > 2 else main()
