"""Train a small network that leaves a record of each step for other programs, progress lines, and a log in JSON.

    pip install torch && pip install -e "path/to/probe[services]"
    python examples/train_with_records.py --epochs 3 --records training_metrics.json --log training.log

The records are made of what `monitor.log` and `monitor.phase` collect, on the monitor's thread: training waits for no
file. `probe exporter --json-file` and `PerformanceMonitor(training_file=...)` read the file. Lines for the monitor are
marked "probe".
"""

import argparse
import json
import logging
from collections import deque
from collections.abc import Mapping
from datetime import datetime, timezone
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from probe.pytorch import TrainerMon  # probe

MONITOR = {"format": ["csv"], "step_count_per_record": 100, "wg_distribution": True, "ops": ["norm"]}  # probe
MOST_RECORDS = 1000
BATCH = 32

log = logging.getLogger("training")


class StepRecords:
    """Listener of steps: the last record in a file, the last thousand in memory, progress lines, a line an epoch."""

    def __init__(self, path: Path, every: int) -> None:
        self.latest = deque[dict[str, Any]](maxlen=MOST_RECORDS)
        self._path, self._every = path, every
        self._epoch: int | None = None
        self._losses, self._seconds, self._steps, self._total = 0.0, 0.0, 0, 0.0

    def __call__(self, step: Any) -> None:
        """Take one step. Called on the monitor's thread."""
        values = step.values
        record = {
            "timestamp": datetime.fromtimestamp(step.time, timezone.utc).isoformat(timespec="milliseconds"),
            "step": step.step,
            "epoch": int(values.get("epoch", 0)),
            "loss": values.get("loss"),
            "gradient_norm": values.get("grad_norm"),
            "learning_rate": values.get("learning_rate"),
            "step_time": values.get("step_seconds"),
            "throughput": values.get("throughput"),
        }
        if self._epoch is not None and record["epoch"] != self._epoch:
            self.end_epoch()
        self._epoch = record["epoch"]
        self._steps, self._losses = self._steps + 1, self._losses + values.get("loss", 0.0)
        self._seconds += values.get("step_seconds", 0.0)
        self.latest.append(record)
        self._replace(record)
        if step.step % self._every == 0:
            message = "epoch %d step %d: loss %.4f, learning rate %.2e, %.1f samples/s"
            shown = (record["loss"] or 0.0, record["learning_rate"] or 0.0, record["throughput"] or 0.0)
            log.info(message, self._epoch, step.step, *shown, extra={"fields": {"metrics": plain(record)}})

    def end_epoch(self) -> None:
        """Log the summary of the epoch in progress."""
        if not self._steps:
            return
        self._total += self._seconds
        summary = {
            "event": "epoch_completed",
            "epoch": self._epoch,
            "average_loss": self._losses / self._steps,
            "epoch_time": self._seconds,
            "total_training_time": self._total,
            "total_steps": self.latest[-1]["step"] + 1,
        }
        text = "epoch %d completed: average loss %.4f, %.1f s"
        log.info(text, self._epoch, summary["average_loss"], self._seconds, extra={"fields": plain(summary)})
        self._losses, self._seconds, self._steps = 0.0, 0.0, 0

    def _replace(self, record: Mapping[str, Any]) -> None:
        """Put ``record`` in the place of the one before: a reader sees one of them, whole."""
        temporary = self._path.with_name(f".{self._path.name}.tmp")
        temporary.write_text(json.dumps(plain(record)), encoding="utf-8")
        temporary.replace(self._path)


class JsonLines(logging.Formatter):
    """Format of a log: one JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        about = {"timestamp": time, "level": record.levelname, "component": record.name}
        return json.dumps({**about, "message": record.getMessage(), **getattr(record, "fields", {})})


def plain(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``record`` in the types of JSON: NaN and the infinities, which it lacks, are texts."""
    return {
        name: str(value) if isinstance(value, float) and not isfinite(value) else value
        for name, value in record.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network that leaves records.")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=50, help="of an epoch")
    parser.add_argument("--every", type=int, default=10, help="steps from one progress line to the next")
    parser.add_argument("--records", type=Path, default=Path("training_metrics.json"))
    parser.add_argument("--log", type=Path, default=Path("training.log"))
    args = parser.parse_args()
    lines = logging.FileHandler(args.log, encoding="utf-8")
    lines.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    log.addHandler(lines)
    torch.manual_seed(0)
    target = torch.randn(16, 4)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, args.steps, gamma=0.5)

    monitor = TrainerMon(MONITOR)  # probe
    monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizer)  # probe
    records = StepRecords(args.records, args.every)
    monitor.on_run_step(records)  # probe
    for epoch in range(args.epochs):
        for _ in range(args.steps):
            with monitor.phase("data"):  # probe
                inputs = torch.randn(BATCH, 16)
            loss = functional.mse_loss(model(inputs), inputs @ target)
            optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            monitor.log(loss=loss, grad_norm=norm, batch_size=BATCH, epoch=epoch)  # probe
            optimizer.step()
            scheduler.step()
    monitor.stop()  # probe: every step has reached the listener
    records.end_epoch()


if __name__ == "__main__":
    main()
