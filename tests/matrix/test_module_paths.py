"""Module paths that are documented elsewhere, after the mechanical change of the package's name."""

from __future__ import annotations

import ast
import importlib.util
import json
import pickle
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import probe
from probe.core.analysis.convert.csv2db import CSV2DBConfig
from probe.core.older_paths import OLDER_PACKAGES, OLDER_PATHS
from tests.required import require
from tests.test_layering import FRAMEWORKS, tried_imports

ROOT = Path(__file__).resolve().parents[2]
IMPORTED = {
    "msprobe.core.monitor.csv2db": ("CSV2DBConfig", "csv2db"),
    "msprobe.pytorch.monitor.csv2tb": ("csv2tensorboard_by_step",),
    "msprobe.mindspore.monitor.csv2tb": ("csv2tensorboard_by_step",),
    "msprobe.pytorch": ("TrainerMon",),
    "msprobe.mindspore": ("TrainerMon",),
}
OURS = {
    "probe.pytorch": ("TrainerMon", "TrainingStopped"),
    "probe.mindspore": ("TrainerMon", "TrainingStopped"),
    "probe.core.csv2db": ("CSV2DBConfig", "csv2db"),
    "probe.pytorch.csv2tb": ("csv2tensorboard_by_step",),
    "probe.mindspore.csv2tb": ("csv2tensorboard_by_step",),
    "probe.core.monitor_manager": ("initialize_monitor_manager", "MonitorManager", "MonitorTracker"),
    "probe.core.alert": ("send_feishu_msg_with_webhook", "initialize_light_monitor", "send_heartbeat"),
    "probe.core.analysis.report.findings": ("Diagnosis", "Mark"),
    "probe.core.analysis.report.write": ("write_report",),
    "probe.core.rules.replica": ("odd_ones",),
    "probe.core.report.diagnosis": ("Diagnosis", "Mark"),
    "probe.core.report.writing": ("write_report",),
    "probe.services.performance_monitor": ("PerformanceMonitor",),
}
"""Paths in our own documentation, today's and those of one version ago."""
PASSING = ["probe/core/alert.py"]
"""Files that offer the names of several modules under one documented path."""
RUN = ("msprobe.core.monitor.anomaly_processor", "msprobe.pytorch.monitor.anomaly_analyse")


NEEDED = {"": "", "pytorch": "torch", "mindspore": "mindspore"}
"""The package that a path with this part needs."""
PARTS = [pytest.param(part, marks=getattr(pytest.mark, package) if package else ()) for part, package in NEEDED.items()]


def part_of(path: str) -> str:
    """The part of ``NEEDED`` that is in ``path``."""
    return next((part for part in NEEDED if part and f".{part}" in path), "")


@pytest.mark.parametrize("part", PARTS)
def test_what_is_imported_from_a_documented_path_is_there(part: str) -> None:
    """A script works when `msprobe` is replaced by `probe`: each path is the first that a process imports of ours."""
    wanted = {path.replace("msprobe", "probe"): names for path, names in (IMPORTED | OURS).items()}
    paths = [path for path in wanted if part_of(path) == part]
    if package := NEEDED[part]:
        require(package)
    script = """
import importlib, json, os, sys
packages, wanted = json.loads(sys.argv[1])
for package in packages:
    importlib.import_module(package)
for path, names in wanted.items():
    if not os.fork():
        module = importlib.import_module(path)
        missing = [name for name in names if not hasattr(module, name)]
        assert not missing, (path, missing)
        os._exit(0)
    _, status = os.wait()
    assert status == 0, path
"""
    packages = ["numpy", "pydantic", "yaml", *filter(None, [package])]  # what takes longest of what is not ours
    command = [sys.executable, "-c", script, json.dumps([packages, {path: wanted[path] for path in paths}])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.torch
def test_documented_commands_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each orders what rules have dumped, as `probe.core.anomaly_processor` does in a process of its own."""
    require("torch")
    numbers = dict.fromkeys(("rank", "step", "micro_step", "pp_stage", "vpp_stage", "call_id"), 0)
    finding = {**numbers, "tag_name": "0:fc.weight/rank0/post_grad", "message": "nan", "group_mates": [0]}
    (tmp_path / "rank0").mkdir()
    (tmp_path / "rank0" / "anomaly.json").write_text(json.dumps({"one": finding}), encoding="utf-8")
    options = ["-d", str(tmp_path), "-o", str(tmp_path / "found.json")]
    command = [sys.executable, "-m", "probe.core.anomaly_processor", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "found.json" in done.stdout
    for module in (path.replace("msprobe", "probe") for path in RUN):
        monkeypatch.setattr(sys, "argv", [module, *options])
        with pytest.raises(SystemExit) as end:  # as `python -m` finds and runs it
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        assert (end.value.code or 0, *capfd.readouterr()) == (0, done.stdout, done.stderr)


def test_no_framework_is_imported_where_the_path_names_none() -> None:
    """They run on machines that have neither."""
    paths = [path.replace("msprobe", "probe") for path in (*IMPORTED, *RUN) if ".core." in path]
    assert tried_imports(paths, FRAMEWORKS) == []
    assert len(paths) == 2


@pytest.mark.parametrize("path", ["probe.core.csv2db", "probe.core.monitor.csv2db"])
def test_a_path_without_a_file_is_found_and_unpickles(path: str) -> None:
    """Tools that look for a module find it, and objects written with an older path are read."""
    assert importlib.util.find_spec(path) is not None
    assert importlib.util.find_spec(f"{path}s") is None
    assert pickle.loads(f"c{path}\nCSV2DBConfig\n.".encode()) is CSV2DBConfig  # protocol 0 spells the module out


def test_no_file_only_passes_names_on() -> None:
    """Older paths stand in one table, whose packages have no folder and whose paths have no file."""
    root = Path(probe.__file__).parents[1]
    for path in (*OLDER_PATHS, *OLDER_PACKAGES):
        assert not root.joinpath(*path.split(".")).with_suffix(".py").exists()
    passing = [
        str(file.relative_to(root))
        for file in root.glob("probe/**/*.py")
        if file.name not in ("__init__.py", "__main__.py") and _only_imports(ast.parse(file.read_text("utf-8")))
    ]
    assert passing == PASSING


def _only_imports(tree: ast.Module) -> bool:
    """Return whether a module has nothing but imports and ``__all__``."""
    own = [
        node
        for node in tree.body
        if not isinstance(node, (ast.Import, ast.ImportFrom))
        and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        and not (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__")
    ]
    return not own
