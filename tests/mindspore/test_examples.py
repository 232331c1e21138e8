"""The script that MindSpore's users copy from, run as they run it."""

from __future__ import annotations

import csv
import math
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import user_scripts
from tests.quick_python import quick_python
from tests.required import require

require("mindspore")
EXAMPLE = Path(__file__).parents[2] / "examples" / "train_gpt_mindspore.py"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The example's output, and the rows of each signal that it wrote."""
    return ran(tmp_path_factory.mktemp("example"))


def ran(output, *arguments):
    """The same of a run with other arguments, by a copy of the script that has nothing beside it."""
    script = shutil.copy(EXAMPLE, output)
    own = {"MONITOR_OUTPUT_DIR": str(output), "PYTHONPATH": str(EXAMPLE.parents[1]), **user_scripts.QUEUED}
    command = [quick_python(*user_scripts.MINDSPORE), str(script), "--steps", "3", *arguments]
    done = subprocess.run(command, env=os.environ | own, cwd=output, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (directory,) = (path for path in output.iterdir() if path.is_dir())
    rows = {}
    for path in directory.glob("*.csv"):
        with path.open(newline="", encoding="utf-8") as file:
            rows.setdefault(path.stem.rpartition("_")[0], []).extend(csv.DictReader(file, strict=True))
    return done.stdout, rows


def norm_of_all(rows, step):
    """Of all tensors of a step together."""
    return math.sqrt(sum(float(row["norm"]) ** 2 for row in rows if row["step"] == str(step)))


def test_it_trains_and_says_where_its_files_are(run):
    """The loss falls, nothing is found in a healthy run, and every switched-on signal has a file."""
    printed, rows = run
    losses = [float(line.split()[3]) for line in printed.splitlines() if line.startswith("step")]
    assert losses[-1] < losses[0]
    assert "findings 0" in printed
    assert "written to" in printed
    assert rows.keys() == {"actv", "actv_grad", "grad_unreduced", "grad_reduced"}


def test_reduced_gradients_are_those_after_clipping(tmp_path):
    """The norms of all parameters together are the length to which the script clips; the backward's were far longer."""
    _, rows = ran(tmp_path, "--accumulate", "1")
    for step in range(3):
        assert norm_of_all(rows["grad_unreduced"], step) > 2.0
        assert norm_of_all(rows["grad_reduced"], step) == pytest.approx(1.0, rel=1e-3)


def test_a_sum_of_micro_batches_is_seen_where_it_is_used(run):
    """MindSpore holds no sum: without a reducer, what several micro batches come to is what the optimizer gets."""
    _, rows = run
    for step in range(3):
        assert norm_of_all(rows["grad_unreduced"], step) == pytest.approx(1.0, rel=1e-3)
        assert norm_of_all(rows["grad_reduced"], step) == pytest.approx(1.0, rel=1e-3)


def test_micro_batches_have_rows_of_their_own(run):
    """Two micro batches a step, of which each has every module's activations and the gradients of both."""
    _, rows = run
    for signal in ("actv", "actv_grad"):
        seen = {(row["step"], row["micro_step"]) for row in rows[signal] if row["name"] == "output.output"}
        assert seen == {(str(step), str(micro)) for step in range(3) for micro in range(2)}


def test_the_monitors_lines_are_marked():
    """Every line that names the monitor is marked."""
    lines = EXAMPLE.read_text(encoding="utf-8").splitlines()
    words = ("TrainerMon", "MONITOR ", "monitor.", "import probe")
    about = [line for line in lines if any(word in line for word in words)]
    assert len(about) >= 5
    assert [line for line in about if "# probe" not in line] == []
