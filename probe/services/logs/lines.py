"""Lines of a stream of bytes within bounded memory, and those among them that are worth a closer look.

Blocks are searched as a whole for literals; lines without any are only counted. A line is cut to 64 KiB. Of the states
of a progress bar, which carriage returns separate, the last counts, and so does every one that has a needle.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from probe.services.logs.expressions import Words, any_of
from probe.services.logs.normal import without_escapes
from probe.services.logs.parser import LIMIT
from probe.services.logs.signs import NEEDLES

BLOCK = 1 << 20
"""Bytes that are read at once."""
ROW, FRAMED, HEAD = b"row", b"framed", b"head"
"""Names of the expressions of a row of numbers, a row in a frame, and the head of a table that no other word shows."""
NOTABLE: Words = any_of(
    [
        b"loss", b"it/s", b"s/it", b"samplespersec", b"samples/s", b"per_step_time", b"per step time", b"skipped=",
        b"overflow", b"grad_norm", b"grad norm", b"global_norm", b"step time", b"gb / ", b"gib / ", b"epoch time",
        b"throughput", b"accuracy", b"words/s", b"cost", b"tok/s", b"tokens/s", b"/sec", b"step=", b"batch=",
        b"= step ", b" rate, ", b" iter, ", b"objf", b"objective function", b"(% done)", b"learn: ", b"timer: ",
        b"gpu_mem", b"|tot ", ROW, FRAMED, HEAD,
        b"warn", b"error", b"critical", b"fatal", b"exception", b"traceback", b"panic",
    ],
    {
        b"gpu_mem": rb"gpu_?mem",
        FRAMED: rb"(?m:^ {0,4}[|][^|\n]{1,64}[|][^|\n]{1,64}[|][^\n]{1,400}[|] {0,4}$)",
        HEAD: rb"(?m:^[# ]{0,16}(?:step|epoch|batch|iter\w{0,6})s?(?: {2,16}|\t| ?, ?)\w)",
        ROW: rb"(?m:^[ |\t\xe2\x94\x82]{0,16}\d[\d ./,:|\te+\xe2\x94\x82()%smMkKGB_[\]-]{8,160}"
        rb"(?:\w{1,40}\.py:\d{1,5})?$)",
    },
)  # fmt: skip
"""Literals of lines with metrics, warnings or errors."""
BEFORE = 1024
"""Bytes before a line that are handed over with it, since the time of a traceback stands above it."""
STATES = 4096
"""Largest number of states of a progress bar in one line that are searched for needles."""


class LogLine(NamedTuple):
    """A line that is to be parsed."""

    number: int
    """Number of the line in its file, from 1."""
    content: bytes
    searched: bool
    """True if it may have the needle of an anomaly."""
    cut: int
    """Bytes that are left out."""
    before: bytes
    """End of the text before the line, as far as it is known."""


class LineReader:
    """Splitter of a stream into lines; holds at most one incomplete line of 64 KiB.

    Args:
        everything: Whether all lines are yielded, not only those with needles.
    """

    def __init__(self, everything: bool = False) -> None:
        self.number = 0
        """Complete lines so far."""
        self.cut = 0
        """Lines that were cut."""
        self._everything = everything
        self._rest: list[bytes] = []
        self._length = 0
        self._cut = 0

    def feed(self, data: bytes) -> Iterator[LogLine]:
        """Yield the lines that ``data`` completes."""
        end = data.rfind(b"\n") + 1
        if end:
            first = data.find(b"\n") + 1
            if self._length + first > LIMIT or self._cut:
                yield from self._long(data[:first])
                yield from self._lines(data[first:end])
            else:
                yield from self._lines(b"".join([*self._rest, data[:end]]))
            self._rest, self._length, self._cut = [], 0, 0
        if end < len(data):
            yield from self._keep(data[end:] if end else data)

    def end(self) -> Iterator[LogLine]:
        """Yield the last line if no line feed ended it; the stream has ended."""
        if self._length:
            yield from self._long(b"")
        self._rest, self._length, self._cut = [], 0, 0

    def forget(self) -> None:
        """Begin again at line 1, as for a file that was truncated."""
        self.number = 0
        self._rest, self._length, self._cut = [], 0, 0

    def _keep(self, data: bytes) -> Iterator[LogLine]:
        """Keep the beginning of an incomplete line; of a progress bar its last state."""
        if self._length + len(data) > LIMIT and b"\r" in data[:-1]:
            before, _, data = data.rpartition(b"\r")
            states, self._rest = b"".join([*self._rest, before]), []
            yield from self._split(self.number + 1, states, self._cut)
            self._length = self._cut = 0
        room = max(0, LIMIT - self._length)
        self._rest.append(data[:room])
        self._length += min(room, len(data))
        self._cut += max(0, len(data) - room)
        if len(self._rest) > 64:
            self._rest = [b"".join(self._rest)]

    def _long(self, data: bytes) -> Iterator[LogLine]:
        """Yield the line in progress with its end ``data``."""
        self.number += 1
        content = without_escapes(b"".join([*self._rest, data.rstrip(b"\r\n")]))
        if b"\r" in content and not self._cut:
            yield from self._split(self.number, content, 0)
            return
        yield from self._one(self.number, content[:LIMIT], self._cut + max(0, len(content) - LIMIT))

    def _lines(self, block: bytes) -> Iterator[LogLine]:
        """Yield the lines of a ``block`` of whole lines that are worth a look."""
        block = without_escapes(block)
        if self._everything:
            for content in block.split(b"\n")[:-1]:
                self.number += 1
                yield from self._split(self.number, content, 0)
            return
        begun, at = self.number, 0
        for start, end, searched in _spans(block):
            begun += block.count(b"\n", at, start)
            at = start
            content = block[start:end]
            if b"\r" in content:
                content = content.strip(b"\r")
            if len(content) > LIMIT or b"\r" in content:
                yield from self._split(begun + 1, content, 0)
            else:
                yield LogLine(begun + 1, content, searched, 0, block[max(0, start - BEFORE) : start])
        self.number += block.count(b"\n")

    def _split(self, number: int, content: bytes, cut: int) -> Iterator[LogLine]:
        """Yield the states of a line: the last, and those before it that have a needle."""
        states = [state for state in content.rstrip(b"\r").split(b"\r") if state] or [b""]
        for state in states[-STATES:-1]:
            if NEEDLES.find(state) >= 0:
                yield from self._one(number, state, 0)
        yield from self._one(number, states[-1], cut)

    def _one(self, number: int, content: bytes, cut: int) -> Iterator[LogLine]:
        if len(content) > LIMIT:
            content, cut = content[:LIMIT], cut + len(content) - LIMIT
        self.cut += cut > 0
        searched = NEEDLES.find(content) >= 0
        if searched or self._everything or cut or NOTABLE.find(content) >= 0:
            yield LogLine(number, content, searched, cut, b"")


def _spans(block: bytes) -> Iterator[tuple[int, int, bool]]:
    """Yield begin and end of each line of ``block`` that has a word of :data:`NEEDLES` or of :data:`NOTABLE`, and
    whether it has one of the former."""
    size, unread = len(block), 0
    needle, notable = _offset(NEEDLES, block, 0), _offset(NOTABLE, block, 0)
    while (word := min(needle, notable)) < size:
        begin = block.rfind(b"\n", unread, word) + 1 or unread
        end = block.find(b"\n", word)
        end = size if end < 0 else end
        yield begin, end, needle < end
        unread = end + 1
        if needle < end:
            needle = _offset(NEEDLES, block, unread)
        if notable < end:
            notable = _offset(NOTABLE, block, unread)


def _offset(words: Words, block: bytes, begin: int) -> int:
    """Return the offset of the first of ``words`` from ``begin`` on; the length of ``block`` if there is none."""
    offset = words.find(block, begin) if begin < len(block) else -1
    return len(block) if offset < 0 else offset
