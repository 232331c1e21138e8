"""Exceptions that users see, and the messages for optional packages that are missing."""

from __future__ import annotations


class TrainingStopped(SystemExit):
    """Raised into training, in the same step on every rank, by a configuration that asks for it (``print_struct``,
    ``cc_log_only``).

    What is not caught ends the process as if the script had come to its end: without a traceback, and with exit code 0,
    so that launchers see nothing fail. ``args[0]`` is ``code``, 0 unless what was asked for could not be done;
    :attr:`reason` says why.
    """

    def __init__(self, reason: str, code: int = 0) -> None:
        super().__init__(code)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


def missing(purpose: str, package: str, extra: str) -> str:
    """The message that ``purpose`` needs ``package``, which ``extra`` of `setup.py` brings, and how to install it."""
    return f'{purpose} needs {package}, of the extra "{extra}". In the clone of probe: {install(extra)}'


def install(extra: str) -> str:
    """The command that installs ``extra``, to be run in the folder that has `setup.py`."""
    return f'pip install -e ".[{extra}]"'


class Misfit(Exception):  # noqa: N818 - nothing has failed
    """What was expected, and what came."""
