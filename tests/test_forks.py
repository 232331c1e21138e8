"""Processes that are forked instead of started."""

from __future__ import annotations

import multiprocessing.spawn
import os
import select
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from tests.forks import ROOT, Forked, ForkServer
from tests.quick_python import quick_python
from tests.waiting import wait_for

CHILD = """
import signal, subprocess, sys
if len(sys.argv) > 1:
    print(sys.stdin.read(), flush=True)
    signal.raise_signal(signal.SIGTERM)
print(subprocess.run([sys.executable, "-u", __file__, "again"], input="typed", text=True).returncode, flush=True)
print(subprocess.run([sys.executable, "-c", "print('json' in __import__('sys').modules)"]).returncode, flush=True)
signal.pause()
"""
SHOWN = "import os, sys; print(__name__, sys.argv[1:], os.environ['GIVEN'], os.getcwd(), json.__name__, flush=True)"


@pytest.fixture(scope="module", params=["started", "forked", "joined"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """One that has imported a module: started itself, forked from another one, or started by somebody else who has left
    meanwhile."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    base = ForkServer([], environment) if request.param == "forked" else None
    address = tmp_path_factory.mktemp("shared") / "server" if request.param == "joined" else None
    others = [ForkServer(["json"], environment, None, address)] if address else []
    server = ForkServer(["json"], environment, base, address)
    for each in others:
        each.close()
    yield server
    for each in filter(None, (server, base)):
        each.close()
    assert address is None or wait_for(lambda: not address.exists()), "the last one ends it"


def started(server: ForkServer, directory: Path, script: str) -> tuple[Forked, Path]:
    """A process that runs ``script``, and where its output goes."""
    path, output = directory / "script.py", directory / "output"
    path.write_text(f"import json\n{script}\n")
    with output.open("w") as file:
        number = file.fileno()
        environment = {"GIVEN": "here"}
        arguments = [str(path), "one", "two"]
        return server.start(
            arguments, environment=environment, cwd=str(directory), stdout=number, stderr=number
        ), output


def test_it_runs_as_a_script_does(server: ForkServer, tmp_path: Path) -> None:
    """With arguments, environment, directory and output of its own."""
    process, output = started(server, tmp_path, SHOWN)
    assert process.wait(60) == 0
    assert output.read_text() == f"__main__ ['one', 'two'] here {tmp_path} json\n"


@pytest.mark.parametrize(
    ("script", "code", "printed"),
    [
        ("raise SystemExit(3)", 3, ""),
        ("import os; os._exit(4)", 4, ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM, ""),
        ("raise ValueError('bad')", 1, "ValueError: bad"),
        ("import atexit; atexit.register(print, 'at the end')", 0, "at the end"),
        ("raise KeyboardInterrupt", -signal.SIGINT, "KeyboardInterrupt"),
        ("raise SystemExit('no')", 1, "no"),
        ("class Held:\n    def __del__(self): print('let go')\nheld = Held()", 0, "let go"),
        ("import threading; threading.Thread(target=print, args=['thread']).start()", 0, "thread"),
        ("import sys; sys.stdout = open('/dev/full', 'w'); print('lost')", 120, "No space left on device"),
    ],
    ids=["exit", "at once", "signal", "exception", "handler", "interrupt", "text", "held", "thread", "full"],
)
def test_it_ends_as_any_process(server: ForkServer, tmp_path: Path, script: str, code: int, printed: str) -> None:
    """By the interpreter's own exit, an exception or a signal; what handlers of the end print is kept."""
    process, output = started(server, tmp_path, script)
    assert process.wait(60) == code
    assert output.read_text().rstrip().endswith(printed)


def test_one_that_runs_on_can_be_ended(server: ForkServer, tmp_path: Path) -> None:
    """A signal reaches it; until then there is no exit code, and the server goes on forking."""
    process, _ = started(server, tmp_path, "import signal\nwhile True:\n    signal.pause()")
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    (tmp_path / "other").mkdir()  # the first may not have read its script yet
    other, _ = started(server, tmp_path / "other", "")
    assert other.wait(60) == 0
    process.kill()
    assert process.wait(60) == -signal.SIGKILL


def test_an_executable_forks_what_it_is_started_with(tmp_path: Path) -> None:
    """A program starts others by it, with their input and their end; a signal reaches it, and is its end."""
    (tmp_path / "script.py").write_text(CHILD)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [quick_python("json"), "script.py"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().strip() for _ in range(4)]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM
    assert lines == ["typed", str(-signal.SIGTERM), "True", "0"]


def test_processes_of_multiprocessing_are_forked() -> None:
    """With what their server has imported; one that dies breaks its pool."""
    executable = multiprocessing.spawn.get_executable()
    multiprocessing.set_executable(quick_python("tests.tables"))
    try:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            assert pool.submit(eval, "'tests.tables' in __import__('sys').modules").result(60)
            with pytest.raises(BrokenProcessPool):
                pool.submit(os._exit, 3).result(60)
    finally:
        multiprocessing.set_executable(executable)


def test_what_an_executable_runs_ends_with_it(tmp_path: Path) -> None:
    """A launcher that kills its processes leaves none."""
    (tmp_path / "script.py").write_text("import os, signal\nprint(os.getpid(), flush=True)\nsignal.pause()\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [quick_python("json"), "script.py"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ended = os.pidfd_open(int(process.stdout.readline()))
        process.kill()
    assert select.select([ended], [], [], 60)[0]
    os.close(ended)
