"""Failures of the machine, as opposed to those of what a user wrote: training goes on without the monitor."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Mapping
from traceback import walk_tb

LACKS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EIO, errno.ESTALE}
)
"""Errors of a machine that is short of space, files or memory, or whose disk fails."""
DENIES = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
"""Errors of a folder that cannot be written. They are the user's if the user has named the folder."""


def machine_failed(error: Exception, environ: Mapping[str, str]) -> bool:
    """Return whether ``error``, raised while a monitor was attached, is the machine's failure and not the user's."""
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, RuntimeError):
        return _starting_thread(error)
    if not isinstance(error, OSError):
        return False
    if isinstance(error, FileNotFoundError) and not _has_folder():
        return True
    return error.errno in LACKS or (error.errno in DENIES and not environ.get("MONITOR_OUTPUT_DIR"))


def _starting_thread(error: Exception) -> bool:
    """Return whether ``error`` comes from the start of a thread. A trial would not show it: there may be room again."""
    return any(frame.f_code is threading.Thread.start.__code__ for frame, _ in walk_tb(error.__traceback__))


def _has_folder() -> bool:
    """Return whether the current folder exists."""
    try:
        os.getcwd()  # noqa: PTH109 - only whether it fails
    except OSError:
        return False
    return True
