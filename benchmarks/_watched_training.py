"""Training in this process that is watched as ``probe run`` does without a configuration, and what was found in it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from probe.launch.environment import DEFAULTS
from probe.pytorch import TrainerMon


def attach(model: Any, optimizer: Any, folder: Path, **groups: Any) -> TrainerMon:
    """Attach a monitor of its own, whose files are below ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["MONITOR_OUTPUT_DIR"] = str(folder)
    monitor = TrainerMon(dict(DEFAULTS))
    monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizer, **groups)
    return monitor


def findings_of(monitor: TrainerMon, folder: Path) -> list[dict[str, Any]]:
    """Return the findings of a monitor that was stopped, as ``probe anomalies --json`` lists them, by step."""
    entries = [
        {
            "grade": "warning",
            "kind": finding.rule,
            "where": finding.key.name,
            "rank": finding.rank,
            "step": finding.step,
        }
        for finding in monitor.findings
    ]
    for file in folder.rglob("checks.jsonl"):
        for text in file.read_text(encoding="utf-8").splitlines():
            line = json.loads(text)
            where = line["where"][0] if line["where"] else None
            names = {"kind": line["check"], "where": where, "rank": line["ranks"]}
            entries.append({"grade": line["grade"], **names, "step": line["step"]})
    return sorted(entries, key=lambda entry: entry["step"])
