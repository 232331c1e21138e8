"""Makefile and CI in a folder whose path has a space, with interpreters that only log their arguments."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.required import require_program

ROOT = Path(__file__).resolve().parent.parent
INTERPRETER = """#!/bin/sh
echo "$0 $*" >> calls
case "$*" in *pytest*) echo "$CLOSING"; exit "$(cat "$(dirname "$0")/../code")";; esac
"""
ENVIRONMENTS = (".venv", ".venv-numpy2")
PROGRAMS = ("python", "probe", "ruff", "mypy", "sphinx-build", "npm", "aarch64-linux-gnu-gcc", "chromedriver")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with what make reads and two environments that count as complete."""
    folder = tmp_path / "with a space" / "probe"
    for path in ("Makefile", "setup.py", "pyproject.toml", "probe/core/backend/fused.c", ".ci/run"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, folder / path)
    for environment in ENVIRONMENTS:
        programs = folder / environment / "bin"
        programs.mkdir(parents=True)
        for name in (*PROGRAMS, "prometheus-alertmanager"):
            (programs / name).write_text(INTERPRETER, encoding="utf-8")
            (programs / name).chmod(0o755)
        (folder / environment / "code").write_text("0", encoding="utf-8")
        for stamp in (".created", ".ready"):
            (folder / environment / stamp).touch()
    return folder


def made(clone: Path, *command: str, environment: Mapping[str, str] = {}) -> tuple[int, str, list[str]]:
    """Exit code, standard output, and the interpreters' command lines."""
    require_program("make")
    path = f"{clone / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    given = {"PATH": path, "CLOSING": "3 passed in 0.10s", **environment}
    done = subprocess.run(command, cwd=clone, env=given, capture_output=True, text=True, check=False)
    calls = clone / "calls"
    lines = calls.read_text(encoding="utf-8").splitlines() if calls.exists() else []
    calls.unlink(missing_ok=True)
    return done.returncode, done.stdout, lines


@pytest.mark.parametrize("failing", [(), (".venv",), (".venv-numpy2",), ENVIRONMENTS])
def test_both_passes_run_and_either_failure_fails(clone: Path, failing: tuple[str, ...]) -> None:
    """The pass under NumPy 2 runs whatever the first one did, and the command ends with a failure of either."""
    made(clone, "make", "venv")
    for environment in failing:
        (clone / environment / "code").write_text("1", encoding="utf-8")
    code, _, calls = made(clone, "make", "test")
    assert [line.split("/")[0] for line in calls] == list(ENVIRONMENTS)
    assert all("pytest" in line for line in calls)
    assert (code != 0) is bool(failing)


def test_the_fast_tests_are_those_without_frameworks_browser_and_waiting(clone: Path) -> None:
    """One pass, in the first environment; other tests can be named."""
    made(clone, "make", "venv")
    (call,) = made(clone, "make", "test-fast")[2]
    assert call.startswith(".venv/bin/python -m pytest")
    assert "-m not torch and not mindspore and not browser and not slow tests/core" in call
    (call,) = made(clone, "make", "test-fast", "ARGS=tests/cli")[2]
    assert call.endswith("not slow tests/cli")


@pytest.mark.parametrize(
    "closing",
    ["3 passed in 0.10s", "1 failed, 2 passed, 4 warnings in 61.20s (0:01:01)", "1 warning, 1 error in 0.10s",
     "2 deselected in 0.10s", "no tests ran in 0.10s", "===== 1 skipped in 0.10s ====="],
)  # fmt: skip
def test_ci_ends_with_the_closing_lines_of_both_passes(clone: Path, closing: str) -> None:
    """Whatever pytest counts, in whichever order."""
    code, out, _ = made(clone, ".ci/run", environment={"CLOSING": closing})
    assert out.splitlines()[-2:] == [closing, closing]
    assert code == 0


def test_ci_fails_where_a_pass_has_no_closing_line(clone: Path) -> None:
    """Its process was killed, or ended without a test."""
    code, out, _ = made(clone, ".ci/run", environment={"CLOSING": "Fatal Python error: Aborted"})
    assert "in 0" not in out
    assert code == 1


def test_benchmarks_are_repeated_by_one_program(clone: Path) -> None:
    """`make bench` names the scripts before `--` and their arguments after it."""
    made(clone, "make", "venv")
    scripts = "benchmarks/a.py benchmarks/b.py"
    (call,) = made(clone, "make", "bench", "BENCH=.venv", f"BENCHMARKS={scripts}", "ARGS=--rounds 2")[2]
    assert call == f".venv/bin/python benchmarks/_repeat.py {scripts} -- --rounds 2"


def test_the_parts_on_a_gpu_run_in_the_environment_of_the_tests(clone: Path) -> None:
    """`make gpu` needs the kernels' compiler and the tests."""
    made(clone, "make", "venv")
    (call,) = made(clone, "make", "gpu", "ARGS=--only versions")[2]
    assert call == ".venv/bin/python benchmarks/gpu.py --only versions"


def test_the_comparison_of_benchmarks_needs_no_environment(clone: Path) -> None:
    """`make bench-compare` runs with any Python."""
    (call,) = made(clone, "make", "bench-compare", "PYTHON=.venv/bin/python", "ARGS=--history a")[2]
    assert call == ".venv/bin/python benchmarks/_history.py --history a"


def test_another_torch_is_installed_and_the_same_one_is_not(clone: Path) -> None:
    """`make demo TORCH=...` replaces what another value has installed, and `make test` puts its own back."""
    assert any("torch==" in line for line in made(clone, "make", "demo")[2])
    assert not [line for line in made(clone, "make", "demo")[2] if "pip" in line]
    (installing, demo) = made(clone, "make", "demo", "TORCH=wheels/torch-2.13.0-cp311.whl")[2]
    assert "pip install --no-compile wheels/torch-2.13.0-cp311.whl" in installing
    assert demo == ".venv/bin/probe demo"
    assert not [line for line in made(clone, "make", "demo", "TORCH=wheels/torch-2.13.0-cp311.whl")[2] if "pip" in line]
    assert "torch==" in made(clone, "make", "test")[2][1]


def test_archives_are_made_in_an_environment_of_their_own(clone: Path) -> None:
    """`make bundle` makes the archives first, by tools of pinned versions."""
    calls = made(clone, "make", "bundle", "DIST=.venv", "EXTRAS=analysis,s3", "ARGS=--python 3.12")[2]
    install, *making = [call.split(" ", 1)[1] for call in calls]
    assert all("==" in package for package in install.removeprefix("-m pip install --no-compile --upgrade ").split())
    assert making == ["resources/packages/make.py", "resources/packages/bundle.py --extras analysis,s3 --python 3.12"]
