"""The scripts that users copy from, run as users run them."""

from __future__ import annotations

import csv
import math
import os
import subprocess
from pathlib import Path

import pytest

from tests import user_scripts
from tests.quick_python import quick_python
from tests.required import require

require("torch")
EXAMPLE = Path(__file__).parents[2] / "examples" / "train_gpt_pytorch.py"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The example's output, and the rows of each signal that it wrote."""
    output = tmp_path_factory.mktemp("example")
    own = {"MONITOR_OUTPUT_DIR": str(output), "PYTHONPATH": str(EXAMPLE.parents[1]), "OMP_NUM_THREADS": "1"}
    command = [quick_python(*user_scripts.TORCH), str(EXAMPLE), "--steps", "3"]
    done = subprocess.run(command, env=os.environ | own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (directory,) = (path for path in output.iterdir() if path.is_dir())
    return done.stdout, {path.stem.rpartition("_")[0]: _rows(path) for path in directory.glob("*.csv")}


def _rows(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_it_trains_and_says_where_its_files_are(run):
    """The loss falls, nothing is found in a healthy run, and every switched-on signal has a file."""
    printed, rows = run
    losses = [float(line.split()[3]) for line in printed.splitlines() if line.startswith("step")]
    assert losses[-1] < losses[0]
    assert "findings 0" in printed
    assert "written to" in printed
    assert {"actv", "actv_grad", "grad_unreduced", "grad_reduced", "exp_avg", "exp_avg_sq"} <= rows.keys()
    assert {"param_origin", "param_updated"} <= rows.keys()


def test_reduced_gradients_are_those_after_clipping(run):
    """The norms of all parameters together make up the length to which the script clips."""
    _, rows = run
    for step in ("0", "1", "2"):
        before, after = (
            math.sqrt(sum(float(row["norm"]) ** 2 for row in rows[signal] if row["step"] == step))
            for signal in ("grad_unreduced", "grad_reduced")
        )
        assert after == pytest.approx(min(1.0, before), rel=1e-3)
        assert before > 1.0


def test_micro_batches_have_rows_of_their_own(run):
    """Two micro batches a step, of which each has every module's activations."""
    _, rows = run
    seen = {(row["step"], row["micro_step"]) for row in rows["actv"] if row["name"] == "embedding.output"}
    assert seen == {(str(step), str(micro)) for step in range(3) for micro in range(2)}
