"""Optional packages: what a message names where one is missing."""

from __future__ import annotations


def missing(purpose: str, package: str, extra: str) -> str:
    """The message that ``purpose`` needs ``package``, which ``extra`` of `setup.py` brings, and how to install it."""
    return f'{purpose} needs {package}, of the extra "{extra}". In the clone of probe: {install(extra)}'


def install(extra: str) -> str:
    """The command that installs ``extra``, to be run in the folder that has `setup.py`."""
    return f'pip install -e ".[{extra}]"'
