"""Process of the exporter: its options, its socket and its sources."""

from __future__ import annotations

import logging
import math
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from probe.core.errors import needed
from probe.services.web.listening import ServerError, bound, is_loopback

if TYPE_CHECKING:
    from probe.services.exporter.reading_process import ReadingProcess

TOKEN_VARIABLE = "PROBE_EXPORTER_TOKEN"  # noqa: S105 - its name
"""Environment variable that holds the token."""
PORT = 9445
"""Port at which exporters of GPUs are usually scraped."""
MOST_FILES = 2 * 4_096
"""Open files of ranks: two a rank."""
END_SECONDS = 2
"""Longest time in seconds for requests that are under way at the end."""
MOST_FILE_SECONDS = 1.0
"""Longest time in seconds of a scrape for files of ranks: Prometheus waits no longer than its interval."""

_log = logging.getLogger("probe.exporter")


class ExporterOptions(NamedTuple):
    """Options of an exporter."""

    host: str = "127.0.0.1"
    port: int = PORT
    """0: any that is free."""
    token: str | None = None
    progress: Sequence[Path] = ()
    """Folders of ranks, or folders above them; none: the usual ones of every user."""
    json_files: Sequence[Path] = ()
    gpu: bool = True
    """Read GPUs and NPUs."""
    device_command: str = ""
    """Program with its arguments that takes the place of the readings of GPUs and NPUs."""
    interval: float = 10.0
    """Seconds from one reading of devices to the next."""
    deadline: float = 10.0
    """Longest time in seconds by which a reading may be late."""


def serve_until_ended(options: ExporterOptions, started: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; ``started`` gets the address at which connections are accepted.

    Raises:
        ServerError: if the exporter cannot start.
        ImportError: if a package is missing.
    """
    with needed("probe exporter", "services"):
        import psutil  # type: ignore[import-untyped, unused-ignore]  # noqa: F401 - the process of the readings needs it

        from probe.services.exporter.json_numbers import JsonNumbers
        from probe.services.exporter.node_page import NodePage, application
        from probe.services.exporter.rank_files import UsualFolders
        from probe.services.exporter.ranks import NodeRanks
        from probe.services.web.serving import ServingLimits, WebServer
    check(options)
    with ExitStack() as stack:
        listening = stack.enter_context(bound(options.host, options.port))
        processes = list(sources(options))
        for process in processes:
            process.start()
            stack.callback(process.close)
        folders = list(options.progress)
        ranks = NodeRanks((lambda: folders) if folders else UsualFolders())
        page = NodePage(ranks, JsonNumbers(options.json_files), processes, min(options.deadline, MOST_FILE_SECONDS))
        gate = application(page, options.token, local=is_loopback(options.host))
        server = WebServer(gate, listening, ServingLimits(files=MOST_FILES, end_seconds=END_SECONDS))
        server.run(lambda: started(server.address))


def check(options: ExporterOptions) -> None:
    """Check options before anything is started.

    Raises:
        ServerError: naming the first that cannot be used.
    """
    for name, seconds in (("--interval", options.interval), ("--deadline", options.deadline)):
        if not 0 < seconds < math.inf:
            raise ServerError(
                "{name}: expected a positive number of seconds, got {seconds:g}", name=name, seconds=seconds
            )
    for folder in options.progress:
        if folder.exists() and not folder.is_dir():
            raise ServerError(
                "--progress {folder}: expected a directory; this is a file: name the folder that it is in",
                folder=folder,
            )
        if not folder.exists():
            _log.warning("--progress %s: not there yet; it is looked for at each scrape", folder)
    for file in options.json_files:
        if file.is_dir():
            raise ServerError("--json-file {file}: expected a file, got a directory", file=file)
        if not file.exists():
            _log.warning("--json-file %s: not there yet; it is looked for at each scrape", file)
    if options.device_command:
        _check_command(options)


def _check_command(options: ExporterOptions) -> None:
    if not options.gpu:
        raise ServerError("--device-command: expected no --no-gpu beside it")
    try:
        program = [*shlex.split(options.device_command), ""][0]
    except ValueError as error:
        raise ServerError("--device-command: expected a program with its arguments: {error}", error=error) from None
    if shutil.which(program) is None:
        raise ServerError(
            "--device-command: expected a program that can be run, got {program!r}; give its path", program=program
        )


def sources(options: ExporterOptions) -> Iterator[ReadingProcess]:
    """Yield the processes of readings that ``options`` choose."""
    from probe.services.exporter.reading_process import ReadingProcess
    from probe.services.exporter.readings.ascend import PROGRAM

    yield ReadingProcess("host", options.interval, options.deadline)
    if options.device_command:
        program, *arguments = shlex.split(options.device_command)
        command = [str(Path(shutil.which(program) or program).resolve()), *arguments]
        yield ReadingProcess("command", options.interval, options.deadline, command)
    elif options.gpu:
        yield ReadingProcess("nvml", options.interval, options.deadline)
        if shutil.which(PROGRAM) is not None:
            yield ReadingProcess("npu", options.interval, options.deadline)
