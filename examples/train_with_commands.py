"""Train a small network on several ranks that shows its numbers to Prometheus and takes commands from outside.

    pip install torch && pip install -e "path/to/probe[services]"
    torchrun --nproc-per-node 2 examples/train_with_commands.py --config monitor.json --steps 2000

While it runs, `probe control monitor_output command reduce_learning_rate factor=0.5` halves the learning rate on all
ranks before the same step. `--fault-at 300` spoils the weights at that step, as a broken device might, and
`--fault-file FILE` does so whenever FILE appears; the command rollback_checkpoint puts those of the last checkpoint
back. Lines for the monitor are marked "probe".
"""

import argparse
import copy
import json
import math
import sysconfig
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from probe.pytorch import ReduceLearningRate, RollbackCheckpoint, TrainerMon  # probe

CONTEXT, WIDTH, CHECKPOINT_STEPS = 8, 32, 50
MONITOR = {  # probe
    "format": ["csv", "prometheus"],
    "step_count_per_record": 100,
    "wg_distribution": True,
    "run": {"job": "commanded"},
}


class Network(nn.Module):
    """Map bytes ``(batch, CONTEXT)`` to logits of the next byte ``(batch, 256)``."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, WIDTH)
        self.hidden = nn.Linear(CONTEXT * WIDTH, 4 * WIDTH)
        self.output = nn.Linear(4 * WIDTH, 256)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        return self.output(functional.gelu(self.hidden(self.embedding(text).flatten(1))))


class Checkpoint:
    """Weights and optimizer of one step, in memory; a real program writes them to a file."""

    def __init__(self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.step = step
        self._model, self._optimizer = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Put back the weights and the optimizer's state; the learning rate stays."""
        rates = [group["lr"] for group in optimizer.param_groups]
        model.load_state_dict(self._model)
        optimizer.load_state_dict(copy.deepcopy(self._optimizer))  # it takes tensors over, and changes them
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


def obey(command: Any, model: nn.Module, optimizer: torch.optim.Optimizer, kept: list[Checkpoint]) -> str:
    """Carry ``command`` out; return a line about it."""
    if isinstance(command, ReduceLearningRate):
        for group in optimizer.param_groups:
            group["lr"] *= command.factor
        return f"learning rate {optimizer.param_groups[0]['lr']:.3g}"
    sound = [each for each in kept if command.before_step is None or each.step < command.before_step]
    if not sound:
        raise LookupError("no checkpoint is old enough")
    sound[-1].restore(model, optimizer)
    return f"weights of step {sound[-1].step}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network that takes commands.")
    parser.add_argument("--config", type=Path, default=Path("monitor.json"), help="configuration; made if missing")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--step-seconds", type=float, default=0.0, help="least duration of a step")
    parser.add_argument("--fault-at", type=int, default=None, help="step before which the weights are spoilt")
    parser.add_argument("--fault-file", type=Path, default=None, help="file that spoils the weights and is removed")
    parser.add_argument("--fault", choices=("nan", "spike"), default="nan")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0 and not args.config.exists():
        args.config.write_text(json.dumps(MONITOR))
    dist.barrier()
    torch.manual_seed(0)
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    data = b"".join(path.read_bytes() for path in sources)[:200_000]
    text = torch.frombuffer(bytearray(data), dtype=torch.uint8).long()
    model = DistributedDataParallel(Network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    kept: list[Checkpoint] = []

    monitor = TrainerMon(args.config)  # probe
    monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizer)  # probe
    torch.manual_seed(1 + rank)
    for step in range(args.steps):
        began = time.perf_counter()
        for command in monitor.commands(ReduceLearningRate, RollbackCheckpoint):  # probe
            with command:  # probe
                print(f"rank {rank} step {step}: {command.name}: {obey(command, model, optimizer, kept)}", flush=True)
        file = args.fault_file if rank == 0 else None
        if step == args.fault_at or (file is not None and file.exists()):
            if file is not None:
                file.unlink(missing_ok=True)
            with torch.no_grad():
                model.module.hidden.weight.mul_(math.nan if args.fault == "nan" else 1000.0)
        places = torch.randint(len(text) - CONTEXT, (32,))
        batch = torch.stack([text[place : place + CONTEXT + 1] for place in places])
        loss = functional.cross_entropy(model(batch[:, :-1]), batch[:, -1])
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        monitor.log(loss=loss, grad_norm=norm, batch_size=len(batch))  # probe
        optimizer.step()
        if step % CHECKPOINT_STEPS == 0 and bool(torch.isfinite(loss) and torch.isfinite(norm)):  # of all ranks
            with monitor.phase("checkpoint"):  # probe
                kept = [*kept[-2:], Checkpoint(step, model, optimizer)]
        time.sleep(max(0.0, args.step_seconds - (time.perf_counter() - began)))
    monitor.stop()  # probe
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
