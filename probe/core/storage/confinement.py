"""Folders that a process may read runs from: a server that shows runs to others follows no link out of them.

Who can write into a run's folder could otherwise have the server show files that only its own user can read. A process
that is not confined, such as a command that its user runs, follows links anywhere.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

_folders: list[Path] = []
"""Folders without links in their paths; none: the process may read anything."""


def confine(places: Iterable[Path]) -> None:
    """Let this process read what is in ``places`` alone, from now on, whatever links are there."""
    _folders[:] = [place.resolve() for place in places] or [Path(os.devnull)]


def permit(folder: Path) -> None:
    """Let this process also read a folder of its own, if it is confined."""
    if _folders:
        _folders.append(folder.resolve())


def leads_out(path: Path) -> bool:
    """Return whether a link in ``path`` leads out of the folders that this process may read."""
    if not _folders:
        return False
    real = path.resolve()
    return not any(real.is_relative_to(folder) for folder in _folders)


def check(path: Path) -> None:
    """Check that a path may be read.

    Raises:
        OSError: if a link leads out of the folders.
    """
    if leads_out(path):
        trouble = "a link leads out of the folders of this command: it is not followed; name its target as one of them"
        raise OSError(errno.ELOOP, trouble, str(path))
