"""One program with its parent, from its start to the end of both, and the folder of their board."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from probe.core.launch import launch_names
from probe.core.messages import complain
from probe.core.sentinel.board import BOARD, LOCK, Board
from probe.core.storage.mapped_parts import digest, private, shared_folder
from probe.launch.environment import WATCHED, is_watched
from probe.launch.parent.program import END_SECONDS, Program, end_as, end_within, inherited_descriptors
from probe.launch.parent.vigil import Vigil

LOCAL_RANK = "LOCAL_RANK"
"""Variable of launchers with the number of a process on its node."""
PREFIX = "board-"
LEFT_SECONDS = 60.0
"""Age from which on a folder is removed whose parent is gone: a younger one may not be locked yet."""


class BoardFolder:
    """The folder, locked until :meth:`remove`.

    Raises:
        OSError: if it cannot be made and written, neither in memory nor in the folder of temporary files.
        BlockingIOError: if another parent has it.
    """

    def __init__(self, name: str) -> None:
        try:
            self._make(shared_folder() / name)
        except BlockingIOError:
            raise
        except OSError:  # full, or read only
            self._make(private(Path(tempfile.gettempdir()) / f"probe-{os.getuid()}") / name)

    def _make(self, folder: Path) -> None:
        made = private(folder)
        descriptor = os.open(made / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)  # a full disk shows now
            if descriptor <= 2:  # a stream that is closed leaves its number
                descriptor, low = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3), descriptor
                os.close(low)
        except BlockingIOError:
            os.close(descriptor)
            raise
        except OSError:
            os.close(descriptor)
            shutil.rmtree(made, ignore_errors=True)
            raise
        self.path, self._lock = made, descriptor

    def remove(self) -> None:
        """Remove the folder, and those that parents have left which were killed."""
        shutil.rmtree(self.path, ignore_errors=True)
        with suppress(OSError):
            os.close(self._lock)
        _sweep(self.path.parent)


def board_for(environ: dict[str, str]) -> BoardFolder | None:
    """Return the board that this process is to make and read, and name it in ``environ``; None if another process
    of this node does so: the parent of a surrounding ``probe run`` or, where a launcher has started each rank with it,
    that of the first rank.

    Raises:
        OSError: if it cannot be made.
    """
    if Board.of(environ) is not None:
        return None
    names = [*launch_names(environ, restarts=True).values()]
    local = environ.get(LOCAL_RANK, "")
    if not (names and local.isdigit()):
        folder = BoardFolder(f"{PREFIX}{os.getpid()}-{time.time_ns():x}")
    else:
        name = f"{PREFIX}{digest(names)}"
        if int(local):
            environ[BOARD] = str(shared_folder() / name)
            return None
        folder = BoardFolder(name)
    environ[BOARD] = str(folder.path)
    return folder


def local_ranks(environ: Mapping[str, str]) -> int:
    """Return the number of processes that a launcher has started beside this one, itself included; 1 without one."""
    number = environ.get("LOCAL_WORLD_SIZE", "")
    return int(number) if number.isdigit() and environ.get(LOCAL_RANK, "").isdigit() else 1


def _sweep(above: Path) -> None:
    for folder in above.glob(f"{PREFIX}*"):
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime > LEFT_SECONDS and not Board(folder).is_read:
                shutil.rmtree(folder)


def follow(command: Sequence[str], environ: dict[str, str], is_reporting: bool = True) -> None:
    """Start a program, wait for it, report about it and end as it does. Return only if it was not started: then the
    caller replaces itself by the program.

    Args:
        environ: environment of the program, to which the name of the board is added.
        is_reporting: whether to report that nothing was watched.
    """
    started = _started(command, environ)
    if started is None:
        return
    program, board = started
    vigil = Vigil(board.path, environ[WATCHED], local_ranks(environ))
    status = program.wait(vigil.look)
    try:
        end_within(END_SECONDS, status, vigil.late)
        vigil.report(os.waitstatus_to_exitcode(status), is_reporting)
        board.remove()
    finally:
        end_as(status)


def _started(command: Sequence[str], environ: dict[str, str]) -> tuple[Program, BoardFolder] | None:
    inherited = inherited_descriptors()
    board: BoardFolder | None = None
    try:
        if not is_watched(environ) or (board := board_for(environ)) is None:
            return None
        return Program(command, environ, inherited), board
    except Exception as error:  # noqa: BLE001 - whatever it is, the program runs
        if board is not None:
            board.remove()
        if not isinstance(error, OSError):
            complain(f"the program runs without a process that waits for it: {error}", "warning")
        return None
