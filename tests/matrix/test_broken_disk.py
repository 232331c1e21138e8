"""A disk that answers with an error (EIO) for some steps of a training, in a process of its own."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.matrix.harness import Harness
from tests.required import require
from tests.tables import read

ROOT = Path(__file__).resolve().parents[2]
CALLS = ("write", "fsync", "rename", "close")
STEPS = 2
"""With the fault, for each call, and as many without it."""
TRAINING = """
import ctypes, hashlib, importlib, json, sys
from tests.matrix.harness import FRAMEWORKS, train_step
from tests.matrix.models import X, tiny_net

name, calls, steps = sys.argv[1], sys.argv[2].split(), int(sys.argv[3])
framework = importlib.import_module(FRAMEWORKS[name].harness)
fail = ctypes.CDLL(None).fail_io

def trained(config):
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=1 / 32, momentum=0.5)
    loop = framework.loop(model, optimizer)
    weights, faults, failed, monitor = [], {}, {}, None

    def train():
        for _ in range(steps):
            train_step(loop, framework.tensor(X))
            weights.append({key: hashlib.md5(w.tobytes()).hexdigest() for key, w in framework.weights(model).items()})

    if config:
        monitor = framework.TrainerMon(config)
        monitor.set_monitor(model, 1, optimizer)
    for call in calls:
        before = sum(monitor.faults.values()) if monitor else 0
        fail(call.encode())
        train()
        if monitor:
            assert monitor.flush()
        failed[call] = fail(b"")
        faults[call] = sum(monitor.faults.values()) - before if monitor else 0
        train()
        if monitor:
            assert monitor.flush()
    if monitor:
        monitor.stop()
    return {
        "weights": weights, "faults": faults, "failed": failed, "all": monitor.faults if monitor else {},
        "directory": monitor.output_directory if monitor else "",
    }

print(json.dumps([trained(None), trained(json.loads(sys.argv[4]))]))
"""
CONFIG = {
    "param_distribution": True,
    "ops": ["norm"],
    "squash_name": False,
    "format": ["csv", "tensorboard", "sqlite", "parquet"],
    "alert": {"rules": [{"rule_name": "AnomalyThreshold", "args": {"above": 0}}], "dump": True},
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What makes calls fail, for LD_PRELOAD."""
    path = tmp_path_factory.mktemp("library") / "failing_io.so"
    source = Path(__file__).with_name("failing_io.c")
    try:
        subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", str(path), str(source), "-ldl"], check=True)
    except FileNotFoundError:
        if os.environ.get("CI"):
            raise
        pytest.skip("needs gcc")
    return path


def trained(framework: Harness, library: Path, root: Path, config: str) -> Any:
    """The end of a training without a monitor, and that of one with it: both in one process of its own."""
    environment = {**os.environ, "MONITOR_OUTPUT_DIR": str(root), "LD_PRELOAD": str(library), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", TRAINING, framework.NAME, " ".join(CALLS), str(STEPS), config],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def steps_in(directory: Path) -> dict[str, set[int]]:
    """The steps that each format has."""
    duckdb = require("duckdb")
    accumulator = require("tensorboard.backend.event_processing.event_accumulator").EventAccumulator(str(directory))
    accumulator.Reload()
    tag = next(tag for tag in accumulator.Tags()["scalars"] if "param_updated" in tag)
    parquet = duckdb.execute("SELECT DISTINCT step FROM read_parquet(?)", [f"{directory}/param_updated_*.parquet"])
    with closing(sqlite3.connect(directory / "monitor_metrics.db")) as database:
        sqlite = database.execute("SELECT DISTINCT step FROM param_updated_rows").fetchall()
    return {
        "csv": {row.step for row in read(directory) if row.signal == "param_updated"},
        "tensorboard": {event.step for event in accumulator.Scalars(tag)},
        "parquet": {step for (step,) in parquet.fetchall()},
        "sqlite": {step for (step,) in sqlite},
    }


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["pytorch", "mindspore"], indirect=True)  # writers are the same for all
def test_training_takes_no_notice_of_a_broken_disk(framework: Harness, library: Path, tmp_path: Path) -> None:
    """Whichever call fails, weights are those of an unwatched run; each fault is counted, and recording goes on."""
    plain, watched = trained(framework, library, tmp_path / "out", json.dumps(CONFIG))
    assert watched["weights"] == plain["weights"]
    assert len(plain["weights"]) == 2 * STEPS * len(CALLS)
    for call in ("write", "rename", "close"):
        assert watched["failed"][call] > 0
        assert watched["faults"][call] > 0
    sound = {n for n in range(2 * STEPS * len(CALLS)) if n // STEPS % 2}
    for name, steps in steps_in(Path(watched["directory"])).items():
        assert sound <= steps, (name, watched["all"])
    entries = json.loads((tmp_path / "out" / "anomaly_detected" / "rank0" / "anomaly.json").read_text())
    assert sound <= {entry["step"] for entry in entries.values()}
    assert [path for path in Path(watched["directory"]).iterdir() if path.name.endswith(".tmp")] == []
