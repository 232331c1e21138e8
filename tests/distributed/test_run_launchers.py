"""``probe run`` around a launcher, and a launcher around ``probe run``: one report a node, and ranks compared."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests import user_scripts
from tests.forks import ROOT
from tests.quick_python import probe_command, quick_python
from tests.required import require

require("torch")

TRAIN = """
import os, sys, torch
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
torch.manual_seed(1)
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1)))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
torch.manual_seed(rank)
for step in range(20):
    net(torch.randn(8, 4)).pow(2).mean().backward()
    if "apart" in sys.argv and step >= 8 and rank == 1:
        net.module[1].weight.grad *= 1.5
    optimizer.step()
    optimizer.zero_grad()
torch.distributed.destroy_process_group()
"""
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
WAYS = {"around the launcher": (("run", "--"), ()), "in each rank": ((), ("-m", "probe.run"))}
"""Words of ``probe`` before the launcher, and what comes before the script."""


def trained(folder: Path, way: str, *words: str) -> list[str]:
    """Lines of the monitor in a training of two ranks."""
    (folder / "train.py").write_text(TRAIN)
    own = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MONITOR_OUTPUT_DIR": str(folder / "out")}
    before, after = WAYS[way]
    started = probe_command(*before, modules=user_scripts.TORCH) if before else []
    command = [*started, quick_python(*user_scripts.TORCH), *TORCHRUN, *after, "train.py", *words]
    done = subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [line for line in done.stderr.splitlines() if line.startswith("probe: ") and " watching " not in line]


@pytest.mark.parametrize("way", WAYS)
def test_ranks_of_a_node_are_compared_and_reported_once(tmp_path: Path, way: str) -> None:
    """Healthy replicas are no finding; what was compared is named."""
    first, *others = trained(tmp_path, way)
    assert first.startswith("probe: info: nothing found in ")
    assert " the gradients of ranks 0-1 at 20 updates" in first
    assert any(line.startswith("probe:   20 steps watched on 2 ranks, ") for line in others)


def test_a_replica_that_leaves_the_others_is_found(tmp_path: Path) -> None:
    """With the parameter and the step, at the ranks' next line."""
    lines = trained(tmp_path, "around the launcher", "apart")
    (verdict,) = (line for line in lines if line.startswith("probe: warning: critical: "))
    assert verdict.startswith("probe: warning: critical: replicas-differ in 1.weight, step 8, ranks 0-1")
