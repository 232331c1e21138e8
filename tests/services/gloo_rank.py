"""Program of a rank in a job of torch.distributed: rank 1 sleeps, rank 0 waits for it in a collective."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch.distributed as dist
from torch import ones

from probe.core.faults import Faults
from probe.core.run_state.progress import Progress
from probe.core.run_state.watcher_process import WatcherSettings, ensure_watcher


def slow_preprocessing() -> None:
    time.sleep(600)


def main() -> None:
    specification = json.loads(sys.argv[1])
    rank, folder = specification["rank"], Path(specification["folder"])
    store = Path(specification["signals"]) / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    progress = Progress(folder, rank, 2, "gloo")
    command = [sys.executable, "-m", "tests.services.file_watcher"]
    settings = WatcherSettings(job="gloo", output=specification["output"], **specification["settings"])
    watcher = ensure_watcher(folder, settings, rank == 0, Faults(), command)
    for step in range(50):
        if step == 30 and rank == 1:
            slow_preprocessing()
        dist.all_reduce(ones(10))
        progress.step(step)
        watcher.look()


if __name__ == "__main__":
    main()
