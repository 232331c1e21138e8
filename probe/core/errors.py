"""Exceptions that users see, and the messages for optional packages that are missing."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from probe.core.language import Message, joined, message


class TrainingStopped(SystemExit):
    """Request to end training, raised in the same step on every rank if the configuration asks for it
    (``print_struct``, ``cc_log_only``).

    If it is not caught, the process ends as if the script had come to its end: without a traceback, and with exit code
    0, so that launchers see no failure. ``args[0]`` is ``code``, 0 unless the request could not be met; :attr:`reason`
    is the cause.
    """

    def __init__(self, reason: str, code: int = 0) -> None:
        super().__init__(code)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


def missing(purpose: str, package: str, extra: str) -> str:
    """Return the message that ``purpose`` needs ``package``, and how to install it with ``extra`` of `setup.py`."""
    return f'{purpose} needs {package}, of the extra "{extra}". In the clone of probe: {install(extra)}'


@contextmanager
def needed(purpose: str, extra: str, others: Mapping[str, str] = {}) -> Iterator[None]:
    """Name the package that ``purpose`` needs if an import in the block fails.

    Args:
        extra: the extra of `setup.py` that has it.
        others: the extras of packages that another one has.

    Raises:
        ImportError: with the command that installs it.
    """
    try:
        yield
    except ImportError as error:
        package = (error.name or extra).partition(".")[0]
        raise ImportError(missing(purpose, package, others.get(package, extra))) from None


def install(extra: str) -> str:
    """Return the command that installs ``extra``, to be run in the folder that has `setup.py`."""
    return f'pip install -e ".[{extra}]"'


ADVICE = {
    errno.ENOSPC: message("there is no space left: free some, or choose another folder"),
    errno.EDQUOT: message("the quota is used up: free some of it, or choose another folder"),
    errno.EROFS: message("the file system is read-only: choose another folder"),
    errno.EACCES: message("permission is denied: choose another place, or change its permissions"),
    errno.EPERM: message("permission is denied: choose another place, or change its permissions"),
    errno.EISDIR: message("expected a file; this is a folder: give the path of a file in it"),
    errno.ENOTDIR: message("expected a folder; a part of this path is a file: choose another path"),
    errno.ENOENT: message("there is no such file or folder: check the path, or make the folder first"),
    errno.EEXIST: message("there is a file of this name already: choose another path"),
    errno.ENAMETOOLONG: message("the name is too long: choose a shorter one"),
    errno.EFBIG: message("the file may not grow so far: raise the limit, `ulimit -f`, or choose another folder"),
    errno.EMFILE: message("too many files are open: raise the limit, `ulimit -n 65536`"),
}
"""Sentences about errors of the system, by number."""


def advice_of(error: BaseException) -> Message:
    """Return the text of an error without the name of a file; of one of the system what is wrong, and what to do."""
    if not isinstance(error, OSError) or error.strerror is None:
        return joined("", [str(error)])
    if error.errno == errno.ENOENT and error.filename is None:  # of Python's module tempfile
        return message("{reason}: free space there, or name another folder by TMPDIR", reason=error.strerror)
    return joined("", [ADVICE.get(error.errno or 0) or str(error.strerror)])


def reason_of(error: BaseException) -> Message:
    """Return the text of an error; of one of the system also the file."""
    name = getattr(error, "filename", None)
    advice = advice_of(error)
    return advice if name is None else message("{path}: {reason}", path=name, reason=advice)
