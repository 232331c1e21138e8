"""``probe run``: a training program as it is, watched."""

from __future__ import annotations

import os
import re
import shutil
import sys
from contextlib import suppress
from importlib.machinery import PathFinder
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Annotated
from zipfile import is_zipfile

import typer

from probe.cli import refuse
from probe.core.language import Message, joined, message
from probe.core.messages import complain
from probe.launch.environment import CONFIG as CONFIG_VARIABLE
from probe.launch.environment import DEEP, DEFAULT, LIGHT, NAMED, SWITCH, flags, watched
from probe.launch.parent.following import follow

CONFIG = ("-c", "--config")
CANNOT_RUN, NOT_FOUND = 126, 127
"""Exit codes of shells for a program that cannot be run, and for one that is not there."""
PYTHON_SUFFIXES = (".py", ".pyw", ".pyc")
"""Endings of what Python runs; of others only archives, and files whose ending is no word, such as ``train-1.0``."""
CONTEXT = {"allow_interspersed_args": False}
"""Settings of the command: options after the script are the script's."""


def run(
    program: Annotated[
        list[str] | None, typer.Argument(help="A script and its arguments; after --, any command and its arguments.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="JSON or YAML file; none: gradients and alerts.")
    ] = None,
    module: Annotated[
        bool, typer.Option("--module", "-m", help="Run a module in place of a script, as python -m does.")
    ] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="Record activations and parameters too, at every step: names the layer.")
    ] = False,
    light: Annotated[
        bool, typer.Option("--light", help="Record no rows: only the checks of every step, at the least cost.")
    ] = False,
) -> None:
    """Run a training program as it is, and watch it: no line of it is changed.

    `probe run train.py --lr 0.1`, `probe run --deep train.py`, `probe run -m package.train`,
    `probe run -- torchrun --nproc-per-node 2 train.py`.
    The exit code is that of the program. PROBE_RUN=0 switches the watching off.
    """
    arguments = list(program or [])
    if not arguments:
        lacking = message("expected a script, -m and a module or, after --, a command; `probe run --help` has examples")
        taken = message("{config}: taken for the configuration; ", config=config)
        refuse(lacking if config is None else joined("", (taken, lacking)))
    named = ["-c"] * (config is not None) + ["--deep"] * deep + ["--light"] * light
    if len(named) > 1:
        text = "expected one of -c, --deep and --light, got {names}: each says what is recorded; leave the others out"
        refuse(text, names=", ".join(named))
    if config is not None:
        _check(config)
    elif not named and (of_environment := os.environ.get(CONFIG_VARIABLE, DEFAULT)) not in NAMED:
        _check(Path(of_environment), f"{CONFIG_VARIABLE}: ")
    command = command_of("run", module, arguments, sys.argv)
    if (switch := os.environ.get(SWITCH, "1")) not in ("", "0", "1"):
        text = "{variable}: expected 0, which switches the watching off, or 1, got {switch!r}: the program is watched"
        complain(text, "warning", variable=SWITCH, switch=switch)
    hint_at_late("--deep", "--light", command=command)
    late = [option for option, file in pairwise(arguments) if option in CONFIG and _is_configuration(file)]
    if late and config is None:
        _warn_of_late(late[0])
    if flag := unwatched_by(command):
        complain(
            "nothing is watched: with {flag} Python ignores PYTHONPATH, by which each process is prepared: leave "
            "it out, or write the three lines in the program",
            "warning",
            flag=flag,
        )
    start(command, DEEP if deep else LIGHT if light else config, is_reporting=not flag)


def command_of(verb: str, module: bool, arguments: list[str], given: list[str]) -> list[str]:
    """Return the command of a program: Python with a module or a script, or, if it stands after ``--``, as it is.

    A script after ``--`` that cannot be run by itself is run by Python.
    """
    python = [sys.executable, *flags(sys.orig_argv)]
    if module and (os.sep in arguments[0] or (arguments[0].endswith(".py") and Path(arguments[0]).exists())):
        name = ".".join(Path(os.path.relpath(arguments[0])).with_suffix("").parts)
        text = "-m {file}: expected the name of a module; write `-m {name}`, or the script without -m"
        refuse(text, file=arguments[0], name=name)
    if module and not _is_module(arguments[0].split(".")):
        text = "-m {name}: expected a module that can be run; there is none: correct it, or go to its folder"
        refuse(text, name=arguments[0])
    if module:
        return [*python, "-m", *arguments]
    is_command, script = len(given) > len(arguments) and given[-len(arguments) - 1] == "--", Path(arguments[0])
    needs_python = script.suffix in PYTHON_SUFFIXES and script.is_file() and shutil.which(arguments[0]) is None
    if is_command and not needs_python:
        return arguments
    if wrong := _no_script(script, verb):
        refuse(wrong)
    return [*python, *arguments]


def _is_module(parts: list[str]) -> bool:
    """Return whether there is a module, as far as that shows without importing any."""
    try:
        spec = PathFinder.find_spec(parts[0], [str(Path.cwd())]) or find_spec(parts[0])
    except ValueError:  # one in use that has no specification
        return True
    for number in range(2, len(parts) + 1):
        if spec is not None:
            spec = PathFinder.find_spec(".".join(parts[:number]), [*(spec.submodule_search_locations or ())])
    if spec is not None and (inside := spec.submodule_search_locations) is not None:
        spec = PathFinder.find_spec(f"{spec.name}.__main__", [*inside])
    return spec is not None


def hint_at_late(*options: str, command: list[str]) -> None:
    """Warn of options of ours that stand after a script that does not name them."""
    script = next((word for word in command[1:] if word.endswith(".py")), "")
    if command[0] != sys.executable or not (late := {*options} & {*command}):
        return
    with suppress(OSError):
        late -= {option for option in late if option in Path(script).read_text("utf-8", "replace")}
    if late:
        _warn_of_late(min(late))


def _warn_of_late(option: str) -> None:
    text = "{late} stands after the script, which gets it: as an option of probe write it before the script"
    complain(text, "warning", late=option)


def _is_configuration(file: str) -> bool:
    """Return whether a file is a configuration of a monitor, and not of the program that gets its name."""
    from probe.core.config.errors import ConfigError
    from probe.core.config.load import load

    with suppress(ConfigError):
        return os.path.isfile(file) and bool(load(file))  # noqa: PTH113 - a word of any length
    return False


def _no_script(file: Path, verb: str) -> str:
    """Return what is wrong with the script of a command; an empty text if Python can run it."""
    if file.is_dir():
        found = message("this is a folder without __main__.py: give the script in it")
        return "" if (file / "__main__.py").exists() else _expected(file, found)
    if not file.exists():
        return _expected(file, _missing(file, verb))
    if _is_script(file):
        return ""
    text, program = "for another program write `probe {verb} -- {program} {file} ...`", "PROGRAM"
    if file.suffix == ".ipynb":
        text = "this is a notebook: `jupyter nbconvert --to script {file}` writes its script"
    elif _is_configuration(str(file)):
        text = "this is a configuration: write `probe run -c {file} train.py`"
    elif os.access(file, os.X_OK) and not file.suffix:
        text = "for another program write `probe {verb} -- {program} ...`"
        program = os.path.join(file.parent, file.name)  # noqa: PTH118 - ./ stays, without which PATH is searched
    elif file.suffix in (".sh", ".bash"):
        program = "bash"
    return _expected(file, message(text, file=file, verb=verb, program=program))


def _missing(file: Path, verb: str) -> Message:
    """Return what is to be done about a script that is not there."""
    from probe.core.config.errors import nearest

    beside = [str(path) for path in file.parent.glob("*.py")] if shutil.which(file) is None else []
    if close := nearest(file, beside):
        return message("there is no such file; did you mean {name}?", name=close)
    text = "there is no such file: for another command write `probe {verb} -- {file} ...`"
    if str(file) == "-":
        text = "for standard input write `probe {verb} -- python -`"
    elif re.match(r"\w+:/", str(file)):
        text = "this is a URL: load it down"
    return message(text, file=file, verb=verb)


def _is_script(file: Path) -> bool:
    """Return whether Python runs a file: no other ending, and no NUL in its text."""
    if file.suffix == ".pyc" or not file.is_file() or is_zipfile(file):  # a pipe can be read once
        return True
    with suppress(OSError), file.open("rb") as opened:
        if b"\0" in opened.read(1024):
            return False
    return not file.suffix[1:].isalpha() or file.suffix in PYTHON_SUFFIXES


def _expected(file: Path, found: str) -> str:
    return message("{file}: expected a script of Python; {found}", file=file, found=found)


def unwatched_by(command: list[str]) -> str:
    """Return the flag of Python in a command that makes it ignore our folder; an empty text if there is none."""
    if not re.fullmatch(r"python[\d.]*t?", Path(command[0]).name):
        return ""
    return next((flag for flag in flags(command) if re.fullmatch(r"-[a-zA-Z]*[EIS][a-zA-Z]*", flag)), "")


def _check(config: Path, of: str = "") -> None:
    from probe.core.config.errors import ConfigError
    from probe.core.config.load import load

    try:
        load(config)
    except ConfigError as error:
        refuse(joined("", (of, str(error))))


def start(command: list[str], config: Path | str | None, is_reporting: bool = True) -> None:
    """Start the program, and end as it does; replace this process by it where it needs no parent, or can have none.

    Args:
        is_reporting: false if it has been reported already that nothing is watched.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # full or closed: the program runs all the same
            stream.flush()
    environment = watched(os.environ, config)
    follow(command, environment, is_reporting)
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606 - a shell would need quotes
    except FileNotFoundError:
        complain(
            "{program}: expected a program; there is none of this name: check its spelling and PATH", program=command[0]
        )
        raise typer.Exit(NOT_FOUND) from None
    except OSError as error:
        text = (
            "{program}: expected a program that can be run; {reason}: write `chmod +x {program}`, or the name of what "
            "runs it before it, as in `bash {program}`"
        )
        if Path(command[0]).is_dir():
            text = "{program}: expected a program that can be run; this is a folder: give the program in it"
        complain(text, program=command[0], reason=error.strerror)
        raise typer.Exit(CANNOT_RUN) from None
