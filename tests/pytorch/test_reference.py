"""docs/reference/files.md describes every file, column and field that runs write."""

from __future__ import annotations

import csv
import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from probe.core.storage.manifest import RunDescription
from probe.pytorch import TrainerMon, TrainingStopped
from tests.pytorch.runs import one_step, train_tiny
from tests.pytorch.toys import TinyNet
from tests.required import require
from tests.test_reference import FILES, first_cells

torch = require("torch")
duckdb = require("duckdb")
require("tensorboardX")
EVERYTHING: dict[str, Any] = {
    "wg_distribution": True,
    "param_distribution": True,
    "mv_distribution": True,
    "ur_distribution": True,
    "mg_direction": True,
    "xy_distribution": True,
    "all_xy": True,
    "stack_info": True,
    "recording_l2_features": True,
    "l2_targets": {"linear_hook": []},
    "ops": ["norm", "nans", "histogram"],
    "alert": {"dump": True, "rules": [{"rule_name": "AnomalyThreshold", "args": {"above": 0}}]},
    "history": 1,
    "max_overhead": 0.9,
}
FEATURES = {"sr", "kernel_norm"}
"""Columns of a signal's own, which docs/guides/features.md and docs/guides/distributions.md describe."""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The output of a run with everything that one process can write, and of one that asks for structures."""
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path))
    model = TinyNet()
    optimizer = torch.optim.Adam(model.parameters())
    with TrainerMon(EVERYTHING | {"format": ["csv", "parquet", "sqlite", "tensorboard"]}) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        for _ in range(3):
            one_step(model, optimizer)
    with pytest.raises(TrainingStopped):
        train_tiny({"print_struct": True})
    return tmp_path


def described() -> list[re.Pattern[str]]:
    """A pattern for each path in the page's first block: numbers, times and signals may be others."""
    (block,) = re.findall(r"```text\n(Dec03.*?)```", FILES, re.DOTALL)
    paths, folder = [], ""
    for line in block.splitlines():
        word = line.split()[0]
        folder = word if word.startswith("Dec03") else folder if line.startswith(" ") else ""
        paths.append(word if word == folder else folder + word)
    times = [re.sub(r"[A-Z][a-z]{2}\d\d_\d\d-\d\d-\d\d", "TIME", path).replace("actv", "SIGNAL") for path in paths]
    shapes = [re.sub(r"rank0-\w+/", "rank0-ID/", path) for path in times]
    words = {
        "TIME": r"[A-Z][a-z]{2}\d\d_\d\d-\d\d-\d\d",
        "SIGNAL": r"[a-z_0-9]+?",
        "ID": "[0-9a-f]{8}",
        "tfevents": r"tfevents[\w.-]*",
    }
    patterns = [
        re.sub(r"\d+", r"\\d+", re.escape(re.sub(r"tfevents\S*", "tfevents", path)).replace(r"\-", "-"))
        for path in shapes
    ]
    return [re.compile(re.sub("|".join(words), lambda found: words[found[0]], pattern)) for pattern in patterns]


def test_every_file_is_described(root: Path) -> None:
    """Each file of a run with all features, and several of each kind."""
    written = [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()]
    patterns = described()
    assert len(written) > 20
    assert [path for path in written if not any(pattern.fullmatch(path) for pattern in patterns)] == []


def test_every_column_is_described(root: Path) -> None:
    """Of CSV and Parquet files; ops and the columns of features apart."""
    known = (
        set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| .*?\|", FILES, re.MULTILINE))))
        | set(EVERYTHING["ops"])
        | FEATURES
    )
    seen: set[str] = set()
    for path in root.rglob("*_[0-9]*.csv"):
        seen |= set(next(csv.reader(path.open(newline="", encoding="utf-8"))))
    for path in root.rglob("*.parquet"):
        seen |= set(duckdb.sql(f"SELECT * FROM '{path}' LIMIT 0").columns)
    assert {"vpp_stage", "name", "step", "micro_step", "shape", "dtype", "call"} <= seen
    assert seen - known == set()


def test_every_field_of_the_manifest_and_of_costs_is_described(root: Path) -> None:
    """Those of this run; the others are written in the code."""
    (manifest,) = (json.loads(path.read_text("utf-8")) for path in root.glob("*/manifest.json"))
    fields = first_cells("manifest.json")
    assert set(manifest) - fields == set()
    source = "".join(path.read_text("utf-8") for path in (Path(__file__).parents[2] / "probe" / "core").rglob("*.py"))
    assert [f for f in fields if f'"{f}"' not in source and f not in RunDescription.__annotations__] == []
    (costs,) = root.glob("*/cost.jsonl")
    assert set(json.loads(costs.read_text("utf-8").splitlines()[0])) == first_cells("cost.jsonl")


def test_every_table_of_a_database_is_described(root: Path) -> None:
    """In the guide to conversions."""
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "conversions.md").read_text("utf-8")
    (database,) = root.rglob("monitor_metrics.db")
    with sqlite3.connect(database) as connection:
        names = {
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
        }
    plain = {
        re.sub(
            r"^.*_rows$",
            "{kind}_rows",
            re.sub(r"^metric_\d+_step_\d+_\d+$", "metric_{metric_id}_step_{first}_{last}", name),
        )
        for name in names
    }
    assert len(plain) >= 8
    assert [name for name in plain if f"`{name}`" not in guide] == []
