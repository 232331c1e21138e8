"""``probe run``: what it starts, and wrong use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from probe.cli.run import flags
from probe.core.launch import WATCHED
from probe.launch.environment import SITE, watched
from probe.launch.parent.vigil import NOTHING
from tests.quick_python import probe_command

ROOT = Path(__file__).parents[2]


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    own = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(probe_command("run", *words), cwd=cwd, env=own, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "expected a script, -m and a module or, after --, a command"),
        (("no such.py", "--a"), 2, "no such.py: expected a script of Python; there is no such file"),
        (("--", "no such program"), 127, "no such program: expected a program; there is none of this name"),
        (("trian.py",), 2, "there is no such file; did you mean train.py?"),
        (("wrong.json",), 2, "for another program write `probe run -- PROGRAM wrong.json ...`"),
        (("folder",), 2, "folder: expected a script of Python; this is a folder without __main__.py"),
        (("-m", "train.py"), 2, "-m train.py: expected the name of a module; write `-m train`"),
        (("--", "."), 126, ".: expected a program that can be run; this is a folder: give the program in it"),
        (("--", "./train.sh"), 126, "can be run; Permission denied: write `chmod +x ./train.sh`, or the name of what"),
        (("-c", "no such.json", "train.py"), 2, "no such.json"),
        (("-c", "wrong.json", "train.py"), 2, "wg_distributio: unknown key; did you mean wg_distribution"),
    ],
)
def test_wrong_use_is_a_line_with_the_advice(tmp_path: Path, words: tuple[str, ...], code: int, said: str) -> None:
    """Before anything is started."""
    (tmp_path / "wrong.json").write_text('{"wg_distributio": true}')
    (tmp_path / "train.py").write_text("print('started')\n")
    (tmp_path / "train.sh").touch()
    (tmp_path / "folder").mkdir()
    done = run(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_modules_and_commands_get_their_own_options(tmp_path: Path) -> None:
    """Those after the program are the program's; `-m` runs a module of the working directory."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text("import sys\nprint(__name__, sys.argv[1:], sys.path[0])\n")
    done = run("-m", "package.train", "-c", "x", "--", "y", cwd=tmp_path)
    assert done.stdout == f"__main__ ['-c', 'x', '--', 'y'] {tmp_path}\n", done.stderr
    done = run("--", "sh", "-c", 'echo "$0 $PROBE_CONFIG"', "-m", cwd=tmp_path)
    assert done.stdout == "-m default\n", done.stderr
    (tmp_path / "own.py").write_text("import sys\nprint(__name__, sys.argv[1:])\n")
    assert run("--", "own.py", "-c", "x", cwd=tmp_path).stdout == "__main__ ['-c', 'x']\n"  # no program of its own


def test_a_process_without_a_framework_costs_nothing(tmp_path: Path) -> None:
    """No module of the monitor but those that wait is imported, and the folder of ours is not on the path."""
    (tmp_path / "train.py").write_text(
        "import sys\nprint(sorted(m for m in sys.modules if m.split('.')[0] in ('probe', 'numpy', 'pydantic')))\n"
        f"print({str(SITE)!r} in sys.path)\n"
    )
    done = run("--", sys.executable, "train.py", cwd=tmp_path)
    modules = ["probe", "probe.launch", "probe.launch.environment", "probe.launch.imports", "probe.launch.preparation"]
    assert done.stdout == f"{modules}\nFalse\n"
    assert [NOTHING in line for line in done.stderr.splitlines()] == [True]


def test_options_after_the_script_are_told(tmp_path: Path) -> None:
    """They are the script's, and may have been meant for probe."""
    (tmp_path / "train.py").write_text("import sys\nprint(sys.argv[1:])\n")
    done = run("train.py", "--deep", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "['--deep']\n")
    assert "probe: warning: --deep stands after the script, which gets it" in done.stderr
    (tmp_path / "monitor.json").write_text('{"ops": ["norm"]}')
    (tmp_path / "own.json").write_text('{"lr": 0.1}')
    assert "-c stands after the script" in run("train.py", "-c", "monitor.json", cwd=tmp_path).stderr
    assert "stands after" not in run("train.py", "-c", "own.json", cwd=tmp_path).stderr


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-", ">&- 2>&-"])
def test_a_program_runs_whatever_becomes_of_its_output(tmp_path: Path, redirection: str) -> None:
    """A full disk behind its log, or no standard error at all: the exit code is the program's."""
    (tmp_path / "train.py").write_text("import pathlib\npathlib.Path('trained').touch()\nraise SystemExit(7)\n")
    own = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = f"{sys.executable} -m probe run train.py {redirection}"
    assert subprocess.run(command, shell=True, cwd=tmp_path, env=own, check=False).returncode == 7
    assert (tmp_path / "trained").exists()


def test_a_sitecustomize_of_the_user_runs_and_its_error_is_shown_as_without(tmp_path: Path) -> None:
    """As Python itself shows it; the program runs."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("raise ValueError('of the user')\n")
    (tmp_path / "train.py").write_text("print('trained')\n")
    own = {**os.environ, "PYTHONPATH": str(tmp_path / "own")}
    plain = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env=own, capture_output=True, text=True, check=False
    )
    own["PYTHONPATH"] += f"{os.pathsep}{ROOT}"
    command = [sys.executable, "-m", "probe", "run", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert "ValueError: of the user" in plain.stderr
    assert done.stderr.count("of the user") >= 1


def test_flags_of_the_interpreter_are_kept() -> None:
    """Up to the script or module."""
    assert flags(["python", "-O", "-X", "dev", "-m", "probe", "run", "-c", "a"]) == ["-O", "-X", "dev"]
    assert flags(["python", "/bin/probe", "run", "-O"]) == []


def test_the_environment_is_the_users_with_ours_first() -> None:
    """Once, also if a watched program watches another."""
    once = watched({"PYTHONPATH": "a", "B": "c"}, None)
    assert once["PYTHONPATH"].split(os.pathsep) == [str(SITE), "a"]
    assert once["B"] == "c"
    assert watched(once, None) == once
    assert once[WATCHED] != watched({}, None)[WATCHED]
    inner = watched(watched({}, Path("outer.json")), None)
    assert inner["PROBE_CONFIG"] == str(Path("outer.json").resolve())
    assert watched(inner, Path("inner.json"))["PROBE_CONFIG"] == str(Path("inner.json").resolve())


@pytest.mark.parametrize("flag", ["-I", "-E", "-sS"])
def test_flags_that_ignore_our_folder_are_named(tmp_path: Path, flag: str) -> None:
    """The program runs, and a line says why it is not watched."""
    (tmp_path / "train.py").write_text("print('trained')\n")
    done = run("--", sys.executable, flag, "train.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert f"probe: warning: nothing is watched: with {flag} Python ignores PYTHONPATH" in done.stderr
    assert NOTHING not in done.stderr
    assert "PYTHONPATH" not in run("--", sys.executable, "-s", "train.py", cwd=tmp_path).stderr


def test_a_folder_with_a_main_module_runs_as_by_python(tmp_path: Path) -> None:
    """Likewise an archive of one."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text("print('trained')\n")
    done = run("package", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
