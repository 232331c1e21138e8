"""Versions of the frameworks: what is promised, where, and what happens with an older one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from probe.core.backend.versions import require_version

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("installed", ["2.4.0", "2.4.1+cu121", "2.13.0+cpu", "3.0.0", "2.5.0a0+gitdeadbee", "unknown"])
def test_no_older_version_is_accepted(installed: str) -> None:
    """Numbers are compared as numbers, and what has none is not judged."""
    require_version("probe.pytorch", "torch", installed, "2.4")


@pytest.mark.parametrize("framework", [("pytorch", "torch", "2.3.1+cu121"), ("mindspore", "mindspore", "2.4.9")])
def test_an_older_framework_is_one_clear_error_at_import(tmp_path: Path, framework: tuple[str, str, str]) -> None:
    """The line names the adapter, what is expected, what is there, and what to install."""
    name, package, old = framework
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text(f"__version__ = {old!r}\n", encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    command = [sys.executable, "-c", f"from probe.{name} import TrainerMon"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    oldest = promised(package)
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: probe.{name}: expected {package} >= {oldest}, got {old}. "
        f'Install a newer one in this environment: pip install "{package}>={oldest}"'
    )


def oldest_run(package: str) -> str:
    """The first version of `make test-versions`."""
    found = re.search(
        rf"^{package.upper()}_VERSIONS := {package}==([\d.]+) ", (ROOT / "Makefile").read_text("utf-8"), re.M
    )
    assert found
    return found[1]


def test_readme_and_setup_name_one_oldest_and_the_oldest_that_is_run() -> None:
    """The promised torch is one that `make test-versions` runs; of MindSpore the README has the oldest that is run."""
    readme = (ROOT / "README.md").read_text("utf-8")
    assert oldest_run("torch").startswith(f"{promised('torch')}.")
    assert f"PyTorch {promised('torch')} or later" in readme
    assert f"MindSpore {oldest_run('mindspore')} or later" in readme


def promised(package: str) -> str:
    """The oldest version in setup.py."""
    found = re.search(rf'"{package}>=([\d.]+)"', (ROOT / "setup.py").read_text("utf-8"))
    assert found
    return found[1]
