"""What one rank says to all, in an order that all see: each notice is given once, by who is first."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol


class Notices(Protocol):
    """What has been said, as one rank sees it: notice after notice, the same ones on every rank."""

    def read(self) -> Mapping[str, Any] | None:
        """The next one, if somebody has given it and it can be seen here.

        Raises:
            OSError: if it cannot be read.
            ValueError: if it is no JSON object.
        """

    def give(self, about: Mapping[str, Any]) -> None:
        """Makes this the one after those that were read here, unless another rank has been first.

        Raises:
            OSError: if it cannot be given.
        """


class FolderNotices:
    """The files ``0.json``, ``1.json``, ... in a folder that all ranks see.

    Those that are there already when this begins are of an earlier run, and passed over.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank = folder, rank
        self._next = 1 + max((int(path.stem) for path in folder.glob("[0-9]*.json")), default=-1)

    def read(self) -> Mapping[str, Any] | None:
        """The next one, if it is there."""
        path = self._folder / f"{self._next}.json"
        if not path.exists():
            return None
        told = json.loads(path.read_text(encoding="utf-8"))
        self._next += 1
        if not isinstance(told, dict):
            raise ValueError(f"{path}: expected a JSON object; there is {type(told).__name__}")
        return told

    def give(self, about: Mapping[str, Any]) -> None:
        """Writes the next one as a whole, unless it is there."""
        self._folder.mkdir(parents=True, exist_ok=True)
        temporary = self._folder / f".{self._rank}.{os.getpid()}.tmp"
        temporary.write_text(json.dumps(about) + "\n", encoding="utf-8")
        try:
            with suppress(FileExistsError):
                os.link(temporary, self._folder / f"{self._next}.json")
        finally:
            temporary.unlink()
