"""Processes forked from one that has imported what they need: importing a framework takes longer than most tests.

A forked process has an identity, arguments, an environment, a directory and files of its own, and ends as any other: by
the interpreter's own exit, an exception or a signal. Only the modules that its server has imported are not taken apart:
that takes twenty times as long as the rest of its end.
"""

from __future__ import annotations

import atexit
import faulthandler
import fcntl
import gc
import importlib
import importlib.util
import os
import pickle
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).parents[1]
LONGEST = 1 << 17
"""Bytes of a request."""
ABOVE = 200
"""File descriptors that are received are moved above those that they are to become."""
WORKER = "--multiprocessing-fork"
"""Argument of a process of ``multiprocessing``."""
WHOLE_END = "TESTS_WHOLE_END"
"""Variable of a process that is to end as the interpreter does, to the last module."""


class ForkServer:
    """Process with one thread that imports ``modules`` and forks as it is asked to.

    Args:
        modules: those to import, in this order.
        environment: its own. The path of its modules is that of all processes that it forks.
        base: another one, from which it is forked with all that that one has imported.
        address: path of a socket by which other processes ask the same server: the first of them starts it.
    """

    def __init__(
        self,
        modules: Sequence[str],
        environment: Mapping[str, str],
        base: ForkServer | None = None,
        address: Path | None = None,
    ) -> None:
        self._turn = threading.Lock()
        self._process: subprocess.Popen[bytes] | Forked | None = None
        if address is None:
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._process = _started(theirs, modules, environment, base)
            return
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with locked(str(address)):
            try:
                self._socket.connect(str(address))
            except OSError:  # there is none, or it has died
                address.unlink(missing_ok=True)
                listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                listener.bind(str(address))
                listener.listen()
                _started(listener, modules, environment, base)
                self._socket.connect(str(address))

    def start(
        self,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        cwd: str,
        stdout: int,
        stderr: int,
        stdin: int | None = None,
        pass_fds: Sequence[int] = (),
        files: Mapping[int, int] = MappingProxyType({}),
        executable: str = "",
    ) -> Forked:
        """A process that runs as ``python`` with these arguments: ``-m`` and a module, ``-c`` and a text or a
        script, and its own.

        Args:
            files: descriptors of this process, by the numbers that they are to have.
            executable: what it is to take for its interpreter.
        """
        become = {1: stdout, 2: stderr, **{number: number for number in pass_fds}, **files}
        become |= {} if stdin is None else {0: stdin}
        request = executable, list(arguments), dict(environment), str(cwd), list(become)
        return self._fork(request, list(become.values()))

    def reap(self, pid: int) -> int:
        """The exit code of a process that has ended; negative if a signal ended it."""
        with self._turn:
            self._socket.send(pickle.dumps(pid))
            return self._answer()

    def close(self) -> None:
        """Ends the server, unless others ask it, too. Processes that it has forked go on."""
        self._socket.close()
        if self._process is not None:
            self._process.wait()

    def _fork(self, request: tuple[object, ...], files: Sequence[int]) -> Forked:
        with self._turn:
            socket.send_fds(self._socket, [pickle.dumps(request)], files)
            return Forked(self, self._answer())

    def _answer(self) -> int:
        answer = self._socket.recv(LONGEST)
        assert answer, f"the fork server has ended with exit code {self._process and self._process.wait()}"
        return int(pickle.loads(answer))


def _started(
    theirs: socket.socket, modules: Sequence[str], environment: Mapping[str, str], base: ForkServer | None
) -> subprocess.Popen[bytes] | Forked:
    """The process of a server that answers at this socket."""
    with theirs:
        if base is not None:
            return base._fork((list(modules), dict(environment)), [theirs.fileno()])
        command = [sys.executable, "-m", "tests.forks", str(theirs.fileno()), *modules]
        return subprocess.Popen(
            command, env=dict(environment), cwd=ROOT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
        )


@contextmanager
def locked(address: str) -> Iterator[None]:
    """Only one process at a time starts, joins or ends the server of this address."""
    with Path(f"{address}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Forked:
    """Process of a :class:`ForkServer`, for use as ``subprocess.Popen``."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.end = os.pidfd_open(pid)
        """Descriptor that can be read once the process has ended."""
        self._server = server

    def poll(self) -> int | None:
        """The exit code; None while the process runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once there is one."""
        if self.returncode is None:
            if not select.select([self.end], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            self.returncode = self._server.reap(self.pid)
            os.close(self.end)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends the process at once."""
        self.send_signal(signal.SIGKILL)


def serve(theirs: socket.socket) -> tuple[str, list[str], dict[str, str], str]:
    """Answers requests. Returns only in a forked process: executable, arguments, environment and directory.

    Args:
        theirs: connection of the process that asks, or socket to which any number of processes connect.
    """
    sockets = Sockets(theirs)
    while True:
        control, request, received = sockets.next()
        asked = pickle.loads(request)
        if isinstance(asked, int):
            control.send(pickle.dumps(os.waitstatus_to_exitcode(os.waitpid(asked, 0)[1])))
            continue
        threads = [each.name for each in Path("/proc/self/task").iterdir()]
        assert len(threads) == threading.active_count() == 1, f"cannot fork {threads}: {threading.enumerate()}"
        pid = os.fork()
        if not pid:
            sockets.close()
            if len(asked) > 2:
                *what, numbers = asked
                take(received, numbers)
                return tuple(what)
            modules, environment = asked  # of another server
            sockets = Sockets(socket.socket(fileno=received[0]))
            os.environ.clear()
            os.environ.update(environment)
            customize(environment.get("PYTHONPATH", "").split(os.pathsep))
            prepare(modules)
            continue
        for each in received:
            os.close(each)
        control.send(pickle.dumps(pid))


class Sockets:
    """Connections of those that ask a server; the process ends with the last of them."""

    def __init__(self, theirs: socket.socket) -> None:
        self._listener = theirs if theirs.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) else None
        self._open = [theirs]

    def next(self) -> tuple[socket.socket, bytes, list[int]]:
        """A request, where it comes from, and the files that come with it."""
        while True:
            ready = select.select(self._open, [], [])[0][0]
            if ready is self._listener:
                self._open.append(ready.accept()[0])
                continue
            request, received = b"", list[int]()
            with suppress(ConnectionResetError):
                request, received, _, _ = socket.recv_fds(ready, LONGEST, 64)
            if request:
                return ready, request, received
            ready.close()
            self._open.remove(ready)
            self._end_without_any()

    def _end_without_any(self) -> None:
        if self._listener is None:
            os._exit(0)
        if len(self._open) == 1:
            address = self._listener.getsockname()
            with locked(address):
                if not select.select(self._open, [], [], 0)[0]:
                    Path(address).unlink()
                    os._exit(0)

    def close(self) -> None:
        """In a forked process."""
        for each in self._open:
            each.close()


def take(received: Sequence[int], numbers: Sequence[int]) -> None:
    """Give file descriptors the numbers that they had where they come from."""
    moved = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, ABOVE) for each in received]
    for each in received:
        os.close(each)
    for each, number in zip(moved, numbers, strict=True):
        os.dup2(each, number, inheritable=number <= 2)
        os.close(each)


def become(executable: str, arguments: list[str], environment: dict[str, str], directory: str) -> None:
    """Run as an interpreter that was started with these arguments."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    sys.executable = executable or sys.executable
    if environment.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    if encoding := environment.get("PYTHONIOENCODING"):
        sys.stdout, sys.stderr = (open(n, "w", encoding=encoding, closefd=False) for n in (1, 2))  # noqa: SIM115 - for all of its life
    random.seed()
    time.tzset()
    tempfile.tempdir = None  # of this environment
    if process := sys.modules.get("multiprocessing.process"):
        process.ORIGINAL_DIR = directory  # type: ignore[attr-defined]
    if spawn := sys.modules.get("multiprocessing.spawn"):
        spawn.set_executable(sys.executable)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    customize(environment.get("PYTHONPATH", "").split(os.pathsep))
    main = types.ModuleType("__main__")
    sys.modules["__main__"], main.__builtins__ = main, __builtins__  # type: ignore[attr-defined]
    if WHOLE_END not in environment:
        _ended.main, _ended.is_worker = main, WORKER in arguments
    try:
        run(arguments, directory, main)
    except BaseException as end:
        code = end.code if isinstance(end, SystemExit) else 1
        _ended.code = code if isinstance(code, int) else 0 if code is None else 1
        if isinstance(end, KeyboardInterrupt):  # the interpreter ends by the signal
            _ended.main = None
        raise


class _Ended:
    """What a forked process has run, and its exit code."""

    main: types.ModuleType | None = None
    code = 0
    is_worker = False
    """Whether it is one of ``multiprocessing``, in which a thread of ours waits to the end."""


_ended = _Ended()


def leave() -> None:
    """End a process in place of the interpreter, after its threads and its handlers of the end: what the program holds
    is let go. It is the interpreter's where a thread runs on, or output cannot be written."""
    if _ended.main is None or (threading.active_count() > 1 and not _ended.is_worker):
        return
    vars(_ended.main).clear()
    gc.collect()
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    except Exception:  # noqa: BLE001 - whatever a program has put there
        return
    os._exit(_ended.code)


def run(arguments: list[str], directory: str, main: types.ModuleType) -> None:
    """Run what the arguments name in ``main``."""
    if arguments[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *arguments[2:]], ""
        exec(compile(arguments[1], "<string>", "exec"), vars(main))
        return
    if arguments[0] == "-m":
        sys.path[0] = directory
        found = importlib.util.find_spec(arguments[1])
        if found is not None and found.submodule_search_locations is not None:
            found = importlib.util.find_spec(f"{arguments[1]}.__main__")
        assert found is not None, arguments
        assert found.origin is not None, arguments
        path, sys.argv = found.origin, [found.origin, *arguments[2:]]
    else:
        path, sys.argv = arguments[0], list(arguments)
        sys.path[0] = str(Path(path).parent)
        if Path(path).is_dir():
            sys.path[0], path = path, str(Path(path, "__main__.py"))
    vars(main).update(__file__=path)
    exec(compile(Path(path).read_bytes(), path, "exec"), vars(main))


def customize(folders: Sequence[str]) -> None:
    """What an interpreter does at its start with the folders in PYTHONPATH: that of ``probe run`` prepares it."""
    sys.path[1:1] = [folder for folder in folders if folder and folder not in sys.path]
    if any(Path(folder, "sitecustomize.py").exists() for folder in folders if folder):
        sys.modules.pop("sitecustomize", None)
        importlib.import_module("sitecustomize")


def prepare(modules: Sequence[str]) -> None:
    """Imports them. Of what they have made, which stays as it is, no collection of garbage looks at anything again."""
    for name in modules:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


def _main() -> tuple[str, list[str], dict[str, str], str]:
    atexit.register(leave)  # before all others, hence called after them
    prepare(sys.argv[2:])
    return serve(socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    become(*_main())
