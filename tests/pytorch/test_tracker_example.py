"""The example with a run of W&B, run as users run it, and read back without W&B's code."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests import user_scripts
from tests.core.trackers.wandb_file import read_run
from tests.quick_python import quick_python
from tests.required import require, require_version

require("torch")

ROOT = Path(__file__).parents[2]
STEPS = 20


def test_the_programs_losses_are_all_there_and_probes_beside_them(tmp_path: Path) -> None:
    """Each loss at its own step; the last row of probe has the loss of the step that it names."""
    path = f"{require_version('wandb-0.31.0')}{os.pathsep}{ROOT}"
    own = {"PYTHONPATH": path, "WANDB_MODE": "offline", "WANDB_SILENT": "true", "OMP_NUM_THREADS": "1"}
    command = [quick_python(*user_scripts.TORCH), str(ROOT / "examples" / "train_with_tracker.py")]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    run = read_run(tmp_path / "wandb")
    losses = {row["_step"]: row["loss"] for row in run.rows if "loss" in row}
    assert sorted(losses) == list(range(STEPS))
    last = [row for row in run.rows if "probe/step" in row][-1]
    assert last["probe/run/loss"] == losses[last["probe/step"]]
    assert last["probe/step"] == STEPS - 1
    assert "probe/grad_reduced/norm_max" in last
