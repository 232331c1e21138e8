"""Exceptions that users see, and the messages for optional packages that are missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager


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


class Misfit(Exception):  # noqa: N818 - nothing has failed
    """Mismatch between an expected value and the one found."""
