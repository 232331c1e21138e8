"""Interpreters that have imported what programs import: an executable file that forks instead of starting Python.

For programs that a launcher, ``probe run`` or another program starts, where the start itself is not what is tested. The
process is a child of the :class:`ForkServer`, in its process group; signals to the executable are passed on.
"""

from __future__ import annotations

import atexit
import os
import pickle
import select
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from tests import user_scripts
from tests.forks import LONGEST, WORKER

EXECUTABLE = """#!{python} -IS
import os, pickle, signal, socket, sys
words = [word for word in sys.argv[1:2] if word != "-u"] + sys.argv[2:]
if not words or (words[0].startswith("-") and words[0] not in ("-m", "-c")) or "resource_tracker" in words[-1]:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
files = [0, 1, 2]
if {worker!r} in words:
    for number in filter(lambda number: number > 2, map(int, os.listdir("/proc/self/fd"))):
        try:
            files += [number] if os.get_inheritable(number) else []
        except OSError:
            pass  # that of the listing
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
    control.connect({address!r})
    socket.send_fds(control, [pickle.dumps((words, dict(os.environ), os.getcwd(), files))], files)
    pid = pickle.loads(control.recv(100))
    for number in (signal.SIGABRT, signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda received, _: os.kill(pid, received))
    code = pickle.loads(control.recv(100))
if code < 0:
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""
"""With options of the interpreter, or for the resource tracker of ``multiprocessing``, it starts Python. What is passed
on to a process of ``multiprocessing`` stays open."""

_paths: dict[tuple[str, ...], str] = {}
"""Executables made so far, by what they import: they go with this process."""


def quick_python(*modules: str) -> str:
    """Path of an interpreter that has imported ``modules``."""
    if modules not in _paths:
        folder = Path(tempfile.mkdtemp())
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        path, address = folder / "python", str(folder / "socket")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(address)
        listener.listen(64)
        path.write_text(EXECUTABLE.format(python=sys.executable, address=address, worker=WORKER), encoding="utf-8")
        path.chmod(0o700)
        threading.Thread(target=_serve, args=(listener, modules, str(path)), daemon=True).start()
        _paths[modules] = str(path)
    return _paths[modules]


def probe_command(*words: object, modules: Sequence[str] = user_scripts.COMMANDS) -> list[str]:
    """What runs ``probe`` with these words, and programs that it starts, by an interpreter that has imported these."""
    return [quick_python(*modules), "-m", "probe", *map(str, words)]


def _serve(listener: socket.socket, modules: Sequence[str], path: str) -> None:
    while True:
        control, _ = listener.accept()
        threading.Thread(target=_run, args=(control, modules, path), daemon=True).start()


def _run(control: socket.socket, modules: Sequence[str], path: str) -> None:
    """Runs one program to its end, or to that of its executable."""
    with ExitStack() as closing:
        closing.enter_context(control)
        request, received, _, _ = socket.recv_fds(control, LONGEST, 64)
        words, environment, folder, numbers = pickle.loads(request)
        stdin, stdout, stderr, *_ = received
        process = user_scripts.forks(*modules).start(
            words,
            environment=environment,
            cwd=folder,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            files=dict(zip(numbers[3:], received[3:], strict=True)),
            executable=path,
        )
        for each in received:
            os.close(each)
        with suppress(OSError):  # it has been ended meanwhile
            control.send(pickle.dumps(process.pid))
        select.select([process.end, control], [], [])
        process.kill()  # unless it has ended
        with suppress(OSError):
            control.send(pickle.dumps(process.wait()))
