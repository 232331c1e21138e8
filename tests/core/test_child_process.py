"""Children of ours run this package, whatever the current directory has."""

from __future__ import annotations

import ast
import json
import os
import subprocess
from pathlib import Path

import pytest

import probe
from probe.core.child_process import PACKAGE, python_module
from tests.sources import parsed

SHADOWS = {
    "a clone": {"probe/README.md": ""},
    "a package": {"probe/__init__.py": "raise SystemExit('hidden')"},
    "a module": {"probe.py": "raise SystemExit('hidden')"},
    "a module of the standard library": {"json.py": "raise SystemExit('hidden')"},
}
USES_OF_M = {"probe.cli.run", "probe.launch.environment"}
"""Modules that pass a program's own ``-m`` on."""


def output_of(command: list[str], folder: Path, **environ: str) -> str:
    """The output of a command in a folder, in which this package is found by its own place alone."""
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"} | environ
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("kind", SHADOWS)
@pytest.mark.parametrize("safe", ["", "1"])
def test_nothing_in_the_current_directory_hides_the_package(tmp_path: Path, kind: str, safe: str) -> None:
    """A child runs the package of its parent where a folder, a package or a module of its name lies, or one of the
    standard library's."""
    for name, text in SHADOWS[kind].items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    shown = output_of(python_module("probe", "--version"), tmp_path, PYTHONSAFEPATH=safe)
    assert shown == f"probe {probe.__version__}"


def test_another_package_of_the_name_on_the_path_is_not_run(tmp_path: Path) -> None:
    """The package of the parent comes before one that a variable of the environment puts on the search path."""
    (tmp_path / "probe").mkdir()
    (tmp_path / "probe" / "__init__.py").write_text("raise SystemExit('hidden')")
    assert output_of(python_module("probe", "--version"), tmp_path, PYTHONPATH=str(tmp_path)).startswith("probe ")


def test_workers_of_a_child_run_the_package_too(tmp_path: Path) -> None:
    """Processes that the standard library starts for a child import the same package."""
    (tmp_path / "probe").mkdir()
    for rank in range(2):
        folder = tmp_path / "run" / f"Dec03_21-34-40-rank{rank}-{rank:08x}"
        folder.mkdir(parents=True)
        (folder / "actv_0-9.csv").write_text("vpp_stage,name,step,norm\n0,a,0,1.0\n")
        (folder / "manifest.json").write_text(json.dumps({"schema": 1, "rank": rank, "run": 0, "first_step": 0}))
    output_of(python_module("probe", "csv2db", "run", "-j", "2", "-o", "out"), tmp_path)
    assert list((tmp_path / "out").rglob("*.db"))


def test_each_child_of_the_package_is_started_by_the_one_function() -> None:
    """No module of ours spells ``-m`` for a child: the current directory would be searched first."""
    spelled = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(parsed(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.List | ast.Tuple) and any(getattr(each, "value", "") == "-m" for each in node.elts)
    }
    assert spelled <= USES_OF_M
