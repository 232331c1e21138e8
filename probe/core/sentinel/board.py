"""Board: the folder by which the watched processes of a node report to the parent process of ``probe run``.

The parent makes it, holds its lock and removes it. Each process writes lines (:mod:`rank_lines`) at every update and a
summary (:mod:`watch_summary`) at its end. Every process of a program can import this module: it imports little.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from probe.core.storage.files import json_of, replacing

if TYPE_CHECKING:
    from probe.core.sentinel.rank_lines import RankLines
    from probe.core.sentinel.watch_summary import WatchSummary

BOARD = "PROBE_BOARD"
"""Environment variable with the path of the folder."""
LOCK = "parent.lock"
"""File on which the parent holds a lock as long as it lives."""
SUMMARY = "summary-"
"""Beginning of the names of summaries; rank, process and number of the run follow."""
SUMMARIES = f"{SUMMARY}*.json"
REASON = "reason"
"""File that is there if a process has reported why it is not watched."""


def note_reason(environ: Mapping[str, str]) -> None:
    """Note on the board, if there is one, that this process has reported why it is not watched."""
    if (board := Board.of(environ)) is not None:
        with suppress(OSError):
            (board.folder / REASON).touch()


class Board:
    """The board, for a watched process.

    Args:
        folder: made by the parent.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.unread = 0
        """Number of summaries that could not be read when they were read last."""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Board | None:
        """Return the board that ``environ`` names; None if there is none, or if its parent is gone."""
        board = cls(Path(environ[BOARD])) if environ.get(BOARD) else None
        return board if board is not None and board.is_read else None

    @property
    def is_read(self) -> bool:
        """True if the parent lives, and will report what is written here."""
        try:
            descriptor = os.open(self.folder / LOCK, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return False

    def lines(
        self,
        rank: int,
        names: Sequence[str],
        replicas: Sequence[int] = (),
        tensor_parallel: Sequence[int] = (),
        split: Sequence[bool] = (),
        sharded: bool = False,
        world: int = 1,
    ) -> RankLines:
        """Return a writer of the lines of one optimizer of this process; see its class for the arguments.

        Raises:
            OSError: if its file cannot be made.
        """
        from probe.core.sentinel.rank_lines import RankLines
        from probe.core.storage.run_directory import output_root

        root = str(output_root(os.environ).absolute())
        return RankLines(self.folder, rank, names, replicas, tensor_parallel, split, root, sharded, world)

    def summary(self, summary: WatchSummary) -> None:
        """Write the summary of a run of this process, in place of an earlier one of the same run.

        Raises:
            OSError: if it cannot be written.
        """
        if not self.folder.is_dir():  # removed by the parent: not to be made again
            raise FileNotFoundError(f"{self.folder}: the folder of `probe run` is gone")
        with replacing(self.folder / f"{SUMMARY}{summary.rank}-{os.getpid()}-{summary.number}.json") as file:
            json.dump(summary.as_json(), file)

    def summaries(self) -> list[WatchSummary]:
        """Return the summaries that there are, by run and rank; those that cannot be read are left out."""
        from probe.core.sentinel.watch_summary import WatchSummary

        summaries, self.unread = list[WatchSummary](), 0
        for path in self.folder.glob(SUMMARIES):
            try:
                summaries.append(WatchSummary.of(json_of(path)))
            except (OSError, ValueError, TypeError, KeyError):
                self.unread += 1
        return sorted(summaries, key=lambda summary: (summary.began, summary.rank))
