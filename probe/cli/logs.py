"""``probe logs``: logs of training programs and of the system around them as JSON lines, and their first anomalies."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from probe.cli import VerbGroup, refuse
from probe.cli.json_answer import print_answer
from probe.core.errors import advice_of, reason_of
from probe.core.language import joined, message
from probe.core.messages import complain, counted, echo

if TYPE_CHECKING:
    from probe.services.logs.first_anomalies import FirstAnomaly
    from probe.services.logs.log_scan import LogScan

app = typer.Typer(
    cls=VerbGroup, no_args_is_help=True, help="Parse the logs of training programs and of the system around them."
)

WIDTH = 160
"""Characters of a line of the summary."""


class Language(str, Enum):
    """Languages of descriptions, causes and advice."""

    ENGLISH = "en"
    CHINESE = "zh"


@app.callback()
def _logs() -> None:
    """Make ``parse`` a command of its own, although it is the only one."""


@app.command()
def parse(
    places: Annotated[
        list[str], typer.Argument(metavar="FILE|-|DIR...", help="Files, - for standard input, directories.")
    ],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is appended, until SIGTERM.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file for the JSON lines; standard output if not given.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Write every line, not only those with metrics, anomalies, warnings, errors.")
    ] = False,
    language: Annotated[Language, typer.Option(help="Language of descriptions and advice.")] = Language.ENGLISH,
    summary: Annotated[bool, typer.Option(help="Write the first anomalies to standard error.")] = True,
    topk: Annotated[int, typer.Option("--topk", "-k", min=1, help="Number of anomalies in the summary.")] = 8,
    as_machine: Annotated[
        bool,
        typer.Option("--json", help="Print the summary as one JSON object, in place of the lines unless -o has them."),
    ] = False,
) -> None:
    """Parse logs into JSON lines, and name the first anomalies by rank and time.

    Directories are searched for text files. With --follow, files that grow, are rotated or truncated are read on, until
    SIGTERM or Ctrl-C.

    Exit code 0 if there was no anomaly, 1 if there was one or a file could not be read, 2 for wrong use.
    """
    from probe.services.logs.log_scan import LogScan
    from probe.services.logs.parser import TrainingLogParser
    from probe.services.logs.sources import STANDARD_INPUT, SourceError, files_of

    try:
        if follow and STANDARD_INPUT in places:
            raise SourceError("--follow: standard input is read to its end in any case; leave the option out")
        for place in places:
            _expect_there(place) if follow else files_of(place)
        target = _output(Path(os.devnull) if as_machine and output is None else output, places)
    except (SourceError, OSError) as error:
        refuse(reason_of(error))
    left_out = _identity(target)
    shown = not follow and sys.stderr.isatty() and not (output is None and sys.stdout.isatty())
    with _progress(shown, places, left_out) as advance:
        scan = LogScan(TrainingLogParser(language.value), target, everything, _warn, advance)
        complete = _written(target, output, lambda: _run(scan, places, follow, left_out))
    if not follow and _is_empty(places):
        _warn(
            message(
                "nothing was read: no line of text in {places}; give the log of the training", places=", ".join(places)
            )
        )
    if as_machine:
        fields = {name: getattr(scan, name) for name in ("lines", "records", "cut", "unread")}
        first = [
            {name: value for name, value in vars(entry).items() if name != "order"}
            for entry in islice(scan.first, topk)
        ]
        print_answer("logs parse", {**fields, "anomalies": scan.first.number, "first": first})
    elif summary:
        _summarize(scan, topk)
    raise typer.Exit(1 if scan.first.number or scan.unread or not complete else 0)


def _is_empty(places: list[str]) -> bool:
    """Return whether no file has a byte; of standard input, and of what is gone, that is unknown."""
    from probe.services.logs.sources import STANDARD_INPUT, SourceError, files_of, size_of

    try:
        paths = [path for place in places for path in files_of(place)[0]]
    except SourceError:
        return False
    return all(Path(path).is_file() for path in paths) and STANDARD_INPUT not in paths and not any(map(size_of, paths))


def _written(target: BinaryIO, output: Path | None, run: Callable[[], None]) -> bool:
    """Call ``run``, which writes to ``target``; return False if not everything could be written."""
    try:
        run()
        target.flush()
    except BrokenPipeError:  # the reader of standard output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), target.fileno())
    except OSError as error:
        complain(
            "{output}: cannot be written: {reason}",
            output=output or message("standard output"),
            reason=advice_of(error),
        )
        os.dup2(os.open(os.devnull, os.O_WRONLY), target.fileno())
        return False
    finally:
        if output is not None:
            target.close()
    return True


def _run(scan: LogScan, places: list[str], follow: bool, left_out: tuple[int, int] | None) -> None:
    from probe.services.logs.log_scan import ended_by_signals
    from probe.services.logs.sources import SourceError, files_of

    if follow:
        with ended_by_signals() as end:
            scan.follow(places, left_out, end)
        return
    for place in places:
        try:
            taken, passed = files_of(place, left_out)
        except SourceError as error:  # gone since the command began
            scan.unread += 1
            _warn(str(error))
            continue
        if passed:
            files = counted(len(passed), "file")
            over = "{place}: {files} passed over, since not text: {first}"
            _warn(message(over, place=place, files=files, first=passed[0]))
        for path in taken:
            scan.read(path)


def _expect_there(place: str) -> None:
    """Raise an error unless the file or its folder is there: a file that is followed may come later."""
    from probe.services.logs.sources import SourceError

    if not Path(place).exists() and not Path(place).absolute().parent.is_dir():
        raise SourceError(
            "{place}: expected a file or a directory; there is no folder {parent}",
            place=place,
            parent=Path(place).parent,
        )
    if not Path(place).exists():
        complain("{place}: there is no such file yet: it is read as soon as there is", "warning", place=place)


def _output(path: Path | None, places: list[str]) -> BinaryIO:
    """Open the file for JSON lines; what it had is replaced.

    Raises:
        OSError: if it cannot be written, or is one of those that are read.
    """
    if path is None:
        return sys.stdout.buffer
    if any(Path(place).exists() and path.exists() and path.samefile(place) for place in places):
        raise OSError(message("--output {path}: expected another file than those that are read", path=path))
    try:
        return path.open("wb")
    except OSError as error:
        raise OSError(
            message("--output {path}: cannot be written: {reason}", path=path, reason=advice_of(error))
        ) from None


def _identity(file: BinaryIO) -> tuple[int, int] | None:
    try:
        found = os.fstat(file.fileno())
    except OSError:
        return None
    return found.st_dev, found.st_ino


@contextmanager
def _progress(shown: bool, places: list[str], left_out: tuple[int, int] | None) -> Iterator[Callable[[int], object]]:
    """Yield a function for the bytes read, which are shown on standard error if ``shown``."""
    if not shown:
        yield int
        return
    from rich.progress import DownloadColumn, TimeRemainingColumn, TransferSpeedColumn

    from probe.cli.progress_bar import progress_bar
    from probe.services.logs.log_scan import total_size
    from probe.services.logs.sources import files_of

    total = total_size([path for place in places for path in files_of(place, left_out)[0]])
    columns = DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    with progress_bar("parsing", *columns, total=total) as update:
        yield lambda number: update(advance=number)


def _warn(text: str) -> None:
    complain(text, "warning")


def _summarize(scan: LogScan, topk: int) -> None:
    """Write counts, and the first anomalies of each rank and kind, to standard error."""
    number = scan.first.number
    head = [
        message("{lines} read", lines=counted(scan.lines, "line")),
        message("{records:,} written", records=scan.records),
        counted(number, "anomaly", "anomalies"),
        *([message("{lines} cut to 64 KiB", lines=counted(scan.cut, "line"))] if scan.cut else ()),
        *([message("{files} not read", files=counted(scan.unread, "file"))] if scan.unread else ()),
    ]
    lines: list[str] = [joined(", ", head)]
    for place, first in enumerate(scan.first):
        if place == topk:
            more = len(scan.first) - topk
            lines.append(message("and {more:,} more by rank and kind (--topk)", more=more))
            break
        lines += _described(first, place == 0)
    if scan.first.left_out:
        left_out = scan.first.left_out
        lines.append(message("{left_out:,} anomalies of further ranks and kinds are not listed", left_out=left_out))
    for line in lines:
        echo(line, True)


def _described(first: FirstAnomaly, in_full: bool) -> Iterator[str]:
    yield message(
        "{time}  {rank}  {severity}  {kind}: {description}{times}",
        time=first.time or message("no time"),
        rank=message("no rank" if first.rank is None else "rank {rank}", rank=first.rank),
        severity=first.severity,
        kind=first.kind,
        description=first.anomaly["description"],
        times=message(", {number:,} times", number=first.number) if first.number > 1 else "",
    )
    yield f"    {first.file}:{first.line}: {first.message}"[:WIDTH]
    if in_full:
        yield f"    {first.anomaly['cause']}"
        yield f"    {first.anomaly['advice']}"
