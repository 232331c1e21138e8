"""Pass over log files: records out, counts and first anomalies kept."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO

from probe.services.logs.anomalies import FRAME, Judged, judge
from probe.services.logs.first_anomalies import FirstAnomalies
from probe.services.logs.followed_file import FollowedFile
from probe.services.logs.json_lines import as_line
from probe.services.logs.lines import LineReader, LogLine
from probe.services.logs.parser import Record, TrainingLogParser
from probe.services.logs.sources import STANDARD_INPUT, SourceError, blocks, files_of, rank_of_path, size_of
from probe.services.logs.structure import rank_of
from probe.services.logs.timestamps import time_of

INTERVAL = 0.2
"""Seconds from one look at followed files to the next."""
OF_TORCHRUN, ABOVE = (b"  exitcode ", b"  traceback :"), 96
"""Lines of torchrun's report whose rank stands above them, and the bytes in which it is looked for."""
BATCH = 256
"""Number of lines that are parsed before their records are written."""
SEARCH = 3
"""Number of looks at followed files from one search of a directory for new files to the next."""


class LogScan:
    """Parser of whole files; writes one JSON object a line.

    Args:
        parser: The parser of single lines.
        output: File that records are written to.
        everything: Whether lines without metrics, anomalies, warnings and errors are written too.
        warn: Function that gets a sentence about each file that could not be read, and each rotation.
        advance: Function that gets the number of bytes of each block that has been read.
    """

    def __init__(
        self,
        parser: TrainingLogParser,
        output: BinaryIO,
        everything: bool = False,
        warn: Callable[[str], object] = str,
        advance: Callable[[int], object] = int,
    ) -> None:
        self.lines = self.bytes = self.records = self.cut = self.unread = 0
        self.first = FirstAnomalies()
        self._parser = parser
        self._output = output
        self._everything = everything
        self._warn = warn
        self._advance = advance

    def read(self, place: str) -> None:
        """Parse a file to its end; one that cannot be read is counted in ``unread``."""
        reader, origin = LineReader(self._everything), _Origin(place)
        try:
            for data in blocks(place):
                self._write(origin, reader.feed(data))
                self.bytes += len(data)
                self._advance(len(data))
        except SourceError as error:
            self.unread += 1
            self._warn(str(error))
        self._write(origin, reader.end())
        self.lines += reader.number
        self.cut += reader.cut

    def follow(self, places: Iterable[str], left_out: tuple[int, int] | None, end: End) -> None:
        """Parse files and what is appended to them until ``end`` is asked for; in directories new files too."""
        asked, followed, looks = list(places), dict[str, _Followed | None](), 0
        while True:
            last = end.asked()
            if looks % SEARCH == 0 and not last:
                self._search(asked, left_out, followed)
            looks += 1
            for path, each in followed.items():
                if each is not None and not self._look(*each):
                    followed[path] = None
            self._output.flush()
            if last:
                break
            end.asked(INTERVAL)
        for file, origin in filter(None, followed.values()):
            self._write(origin, file.end())
            self.lines += file.lines.number
            self.cut += file.lines.cut
            file.close()

    def _search(
        self, asked: list[str], left_out: tuple[int, int] | None, followed: dict[str, _Followed | None]
    ) -> None:
        """Add files that are not followed yet, but for those that were read under another name before a rotation."""
        for place in asked:
            found = files_of(place, left_out)[0] if Path(place).is_dir() else [place]
            for path in found:
                if path in followed or (path != place and path.endswith(".gz")):
                    continue
                if not any(file.has_read(path) for file, _ in filter(None, followed.values())):
                    followed[path] = FollowedFile(path, self._everything), _Origin(path)

    def _look(self, file: FollowedFile, origin: _Origin) -> bool:
        """Parse what has been appended to a file; return False if it cannot be read any more."""
        lines = file.poll()
        while True:
            try:
                batch = list(islice(lines, BATCH))
            except OSError as error:
                self.unread += 1
                self._warn(f"{file.path}: cannot be read: {(error.strerror or str(error)).lower()}; no longer followed")
                file.close()
                return False
            self._write(origin, batch)
            if len(batch) < BATCH:
                break
        if file.note:
            self._warn(file.note)
            file.note = ""
        return True

    def _write(self, origin: _Origin, lines: Iterable[LogLine]) -> None:
        written: list[str] = []
        for line in lines:
            record = self._record(origin, line)
            if record["anomalies"]:
                self.first.add(record)
            if self._everything or record["metrics"] or record["level"] in ("WARNING", "ERROR") or line.cut:
                written.append(as_line(record))
                if len(written) >= BATCH:
                    self._put(written)
        self._put(written)

    def _put(self, written: list[str]) -> None:
        if written:
            self.records += len(written)
            written.append("")
            self._output.write("\n".join(written).encode("utf-8"))
            written.clear()

    def _record(self, origin: _Origin, line: LogLine) -> Record:
        quoted = bool(line.searched and line.content[:1].strip(b" \t[(") == b"" and origin.quotes(line))
        record = self._parser.record(line.content, searched=line.searched and not quoted, cut=line.cut)
        origin.last = line
        judge(record, origin.judged, line.content[:1] in b" \t|", self._parser.language)
        time = record["timestamp"]
        if time is None:
            time = _time_before(line.before) if record["anomalies"] else None
            record["timestamp"] = origin.time if time is None else time
            record["timestamp_source"] = "line before" if record["timestamp"] else None
        if time is not None:
            origin.time = time
        if record["rank"] is None:
            above = rank_of(line.before[-ABOVE:])[0] if line.content.startswith(OF_TORCHRUN) else None
            record["rank"] = origin.rank if above is None else above
        record["file"], record["line"] = origin.name, line.number
        return record


_Followed = tuple[FollowedFile, "_Origin"]


class _Origin:
    """Name of a file, its rank, and the latest time in it."""

    def __init__(self, place: str) -> None:
        self.name = "standard input" if place == STANDARD_INPUT else place
        self.rank = rank_of_path(place)
        self.time: str | None = None
        self.last: LogLine | None = None
        self.judged = Judged()

    def quotes(self, line: LogLine) -> bool:
        """Return whether ``line`` is the source that a traceback shows under a frame, not a message."""
        before = line.before
        if not before and self.last is not None and self.last.number == line.number - 1:
            before = self.last.content
        return FRAME.match(before.rstrip(b"\n").rpartition(b"\n")[2].lower()) is not None


def _time_before(text: bytes) -> str | None:
    """Return the time of the nearest line of ``text``, from its end, that has one."""
    lines = text.split(b"\n")[1:] if len(text) > 1000 else text.split(b"\n")
    return next((time for line in reversed(lines) if line and (time := time_of(line))), None)


def total_size(places: Iterable[str]) -> int | None:
    """Return the bytes of all files; None if one has no size, such as standard input, or is compressed."""
    sizes = [0 if place.endswith(".gz") else size_of(place) for place in places]
    return None if 0 in sizes else sum(sizes)


class End:
    """Request to end that a signal handler may make: an event's lock could be held by the code it interrupts."""

    def __init__(self) -> None:
        self._asked = False
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def ask(self) -> None:
        """Ask for the end; of use from any thread and from a signal handler."""
        if not self._asked:
            self._asked = True
            os.write(self._writer, b"\0")

    def asked(self, seconds: float = 0.0) -> bool:
        """Wait until the end is asked for, at most so many ``seconds``; return whether it is."""
        return self._asked or bool(select.select([self._reader], [], [], seconds)[0])

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._reader)
        os.close(self._writer)


@contextmanager
def ended_by_signals() -> Iterator[End]:
    """Yield an end that SIGTERM and SIGINT ask for; their handlers are put back afterwards."""
    end = End()

    def ask(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature is Python's
        end.ask()

    before = {each: signal.signal(each, ask) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield end
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        end.close()


def counts(scan: LogScan) -> dict[str, Any]:
    """Return the numbers of a scan by name."""
    return {name: getattr(scan, name) for name in ("lines", "bytes", "records", "cut", "unread")}
