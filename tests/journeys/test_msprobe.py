"""A user of msprobe's Monitor with an old configuration: the import is changed, and nothing else."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tests.journeys.commands import probe, run
from tests.journeys.test_student import TRAIN
from tests.required import require

require("torch")
require("duckdb")

OLD = {
    "targets": {"blocks.0.n1": {"input": "tensor", "output": "tensor"}, "blocks.0.fc": {"output": "tensor"}},
    "print_struct": False,
    "module_ranks": [0],
    "start_step": 0,
    "collect_times": 100000000,
    "step_interval": 1,
    "format": "csv",
    "ops": ["norm", "min", "max", "mean", "nans"],
    "ur_distribution": False,
    "xy_distribution": True,
    "forward_only": False,
    "mv_distribution": True,
    "wg_distribution": True,
    "param_distribution": True,
    "mg_direction": False,
    "cc_distribution": {"enable": False, "cc_codeline": []},
    "alert": {"rules": [{"rule_name": "AnomalyTurbulence", "args": {"threshold": 0.5}}], "dump": True},
    "stack_info": False,
}
"""Configuration as msprobe's guide has it."""
BEFORE = TRAIN.replace(
    "import random, sys, torch", "import random, sys, torch\nfrom msprobe.pytorch import TrainerMon"
).replace(
    "optimizer = torch.optim.AdamW(net.parameters(), 1e-3)",
    """optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
monitor = TrainerMon(config_file_path="monitor_config.json", params_have_main_grad=False)
monitor.set_monitor(net, grad_acc_steps=1, optimizer=optimizer)""",
)
AFTER = BEFORE.replace("from msprobe.pytorch import TrainerMon", "from probe.pytorch import TrainerMon")


@pytest.mark.parametrize(("seed", "bad"), [(0, 12), (2, 7)])
def test_the_first_bad_row_is_named(tmp_path: Path, seed: int, bad: int) -> None:
    """By the program alone, whose last line names it, and by `probe anomalies`; files are those of msprobe."""
    (tmp_path / "monitor_config.json").write_text(json.dumps(OLD))
    (tmp_path / "train.py").write_text(AFTER)
    done = run(tmp_path, seed, bad)
    assert done.returncode == 0, done.stderr
    assert "attaches no monitor: the model is watched already, by the program's own monitor" in done.stderr
    (path,) = tmp_path.glob(f"monitor_output/*/actv_{bad}-{bad}.csv")
    with path.open(encoding="utf-8") as file:
        rows = {row["name"]: row["norm"] for row in csv.DictReader(file)}
    assert (rows["blocks.0.n1.output"], rows["blocks.0.n1.input"] != "nan") == ("nan", True)
    verdict = json.loads(probe(tmp_path, "anomalies", "--json").stdout)["verdict"]
    assert (verdict["since"], verdict["where"], verdict["ranks"]) == (bad, ["blocks.0.n1.output"], [])


def test_the_old_configuration_is_checked(tmp_path: Path) -> None:
    """As it stands: what it does, and what it does not."""
    (tmp_path / "monitor_config.json").write_text(json.dumps(OLD))
    done = probe(tmp_path, "config", "check", "monitor_config.json")
    assert done.returncode == 0, done.stderr
    assert "module inputs and outputs" in done.stdout
    (tmp_path / "monitor_config.json").write_text(json.dumps({**OLD, "xy_distributon": True}))
    wrong = probe(tmp_path, "config", "check", "monitor_config.json")
    assert wrong.returncode != 0
    assert "xy_distribution" in wrong.stdout + wrong.stderr
