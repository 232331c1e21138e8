"""``probe check``: wrong use, and programs of which nothing can be seen."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.quick_python import probe_command

ROOT = Path(__file__).parents[2]


def check(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    own = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = probe_command("check", *words)
    return subprocess.run(command, cwd=cwd, env=own, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "expected a script, -m and a module or, after --, a command"),
        (("no such.py",), "no such.py: expected a script of Python; there is no such file"),
        (("--output", ".", "train.py"), "expected a new or empty folder"),
        (("--", "python", "-I", "train.py"), "nothing can be checked: with -I Python ignores PYTHONPATH"),
    ],
)
def test_wrong_use_is_a_line_with_the_advice(tmp_path: Path, words: tuple[str, ...], text: str) -> None:
    """Before anything is started."""
    (tmp_path / "train.py").write_text("print('started')\n")
    done = check(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_a_program_that_fails_or_does_not_train_is_no_healthy_one(tmp_path: Path) -> None:
    """Its exit code and last lines are shown; without an update, nothing was checked."""
    (tmp_path / "train.py").write_text("import sys\nprint('loading', *sys.argv[1:])\nraise SystemExit('no data')\n")
    done = check("train.py", "--lr", "3", cwd=tmp_path)
    assert done.returncode == 2
    assert "the program failed with exit code 1, after 0 updates" in done.stderr
    assert "loading --lr 3\nno data\n" in done.stderr
    (tmp_path / "train.py").write_text("print('trained')\n")
    done = check("train.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "the program made no update that could be seen: nothing was checked" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
