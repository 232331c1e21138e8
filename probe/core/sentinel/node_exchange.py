"""Exchange between the parents of several nodes: each leaves some lines of its ranks in the folder that all share,
at a slow pace, and reads those of the others.

A file is text: a header, and a line for each update. It is replaced whole, so that file systems of a network show it
whole.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

from probe.core.sentinel.rank_lines import LINE, NUMBERS, LinesHeader, RankLine, header_of, packed, parsed
from probe.core.storage.files import replace_text

PREFIX = ".nodes-"
SECONDS = 10.0
"""Time between two exchanges. The first comes at once."""
FIRST_LINES = 16
"""Lines from the beginning that are always left: ranks that begin apart."""
LINES_A_SECOND = 1.0
MOST_LINES, MOST_BYTES = 256, 1 << 20
"""Latest lines of a rank in its file, and their bytes."""
MOST_ROWS = 2048
"""Parameters of a line; of more, the first."""
OLD_SECONDS = 86400.0
"""Age from which on the folder of another launch is removed."""


class LeftLines:
    """Lines of one rank that are left for other nodes.

    Lines are chosen by the number of the step alone, at a distance that is a power of two, so that ranks with another
    pace leave lines of the same steps.
    """

    def __init__(self, header: LinesHeader) -> None:
        self.header = header._replace(
            names=header.names[:MOST_ROWS],
            split=header.split[:MOST_ROWS],
            left_out=header.left_out + max(0, len(header.names) - MOST_ROWS),
        )
        self._rows = len(self.header.names)
        room = max(2, MOST_BYTES // (LINE.size + 3 * NUMBERS * 8 * max(1, self._rows)))
        self._first: list[tuple[int, RankLine]] = []
        self._latest: deque[tuple[int, RankLine]] = deque(maxlen=min(MOST_LINES, room))
        self._seen, self._number, self._began, self._stride = 0, 0, time.monotonic(), 1

    def add(self, lines: Sequence[RankLine]) -> list[RankLine]:
        """Take the next lines; return those of them that are left, with the parameters that are."""
        cut_lines = []
        for line in lines:
            self._seen += 1
            if self._seen <= FIRST_LINES or line.step % self._stride == 0:
                cut_lines.append(self._cut(line))
        for line in cut_lines:
            self._number += 1
            (self._first if len(self._first) < FIRST_LINES else self._latest).append((self._number, line))
        passed = max(1.0, time.monotonic() - self._began)
        while self._seen / self._stride > LINES_A_SECOND * passed + FIRST_LINES:
            self._stride *= 2
        return cut_lines

    def _cut(self, line: RankLine) -> RankLine:
        unreduced = None if line.unreduced is None else line.unreduced[: self._rows]
        values = None if line.values is None else line.values[: self._rows]
        return line._replace(reduced=line.reduced[: self._rows], unreduced=unreduced, values=values)

    def text(self) -> str:
        """Return the text of the file."""
        every = (json.dumps([n, base64.b64encode(packed(line, self._rows)).decode()]) for n, line in self._every())
        return "\n".join([json.dumps(self.header._asdict(), ensure_ascii=False), *every]) + "\n"

    def _every(self) -> Iterator[tuple[int, RankLine]]:
        return chain(self._first, self._latest)


class NodeExchange:
    """Exchange of one launch.

    Args:
        root: output root, which all nodes share if they can be compared.
        launch: names of the launch.
    """

    def __init__(self, root: Path, launch: str) -> None:
        digest = hashlib.sha256(launch.encode("utf-8", "replace")).hexdigest()[:16]
        self.folder = root / f"{PREFIX}{digest}"
        self._left: dict[str, LeftLines] = {}
        self._read: dict[str, tuple[tuple[int, int], int]] = {}
        """Inode and time of each file of another node as it was read, and the number of its last line."""
        self._due = 0.0

    def add(self, header: LinesHeader, lines: Sequence[RankLine]) -> tuple[LinesHeader, list[RankLine]]:
        """Take lines of a rank of this node; return its header and the lines as other nodes get them."""
        name = f"rank{header.rank}-{header.number}"
        left_lines = self._left.get(name)
        if left_lines is None or left_lines.header.began != header.began:
            left_lines = self._left[name] = LeftLines(header)
        return left_lines.header, left_lines.add(lines)

    def is_due(self, last: bool) -> bool:
        """Return whether it is time to exchange lines."""
        return bool(self._left) and (last or time.monotonic() >= self._due)

    def leave(self) -> None:
        """Write the lines of this node's ranks.

        Raises:
            OSError: if they cannot be written.
        """
        self._due = time.monotonic() + SECONDS
        if not self.folder.is_dir():
            _sweep(self.folder.parent)
            self.folder.mkdir(parents=True, exist_ok=True)
        for name, lines in self._left.items():
            replace_text(self.folder / name, lines.text())

    def others(self) -> Iterator[tuple[LinesHeader, list[RankLine]]]:
        """Yield the header and the new lines of each rank of other nodes that has some.

        Raises:
            OSError, ValueError: if a file cannot be read.
        """
        for path in sorted(self.folder.glob("rank*")):
            if path.name in self._left:
                continue
            state = path.stat()
            mark, (last_mark, last) = (state.st_ino, state.st_mtime_ns), self._read.get(path.name, ((0, 0), 0))
            if mark == last_mark:
                continue
            head, *rows = path.read_text("utf-8").splitlines()
            numbered = [(number, base64.b64decode(text)) for number, text in map(json.loads, rows)]
            self._read[path.name] = mark, max([last, *(number for number, _ in numbered)])
            yield header_of(json.loads(head)), [parsed(data) for number, data in numbered if number > last]

    def end(self, seconds: float) -> None:
        """Remove the folder, unless within ``seconds`` another node does."""
        deadline = time.monotonic() + seconds
        while self.folder.is_dir() and time.monotonic() < deadline:
            time.sleep(0.05)
        shutil.rmtree(self.folder, ignore_errors=True)


def _sweep(root: Path) -> None:
    """Remove what launches have left whose first node was killed."""
    for folder in root.glob(f"{PREFIX}*"):
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime > OLD_SECONDS:
                shutil.rmtree(folder)
