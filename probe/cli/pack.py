"""``probe pack``: the files of all ranks as few large ones."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from probe.cli import refusing
from probe.cli.json_answer import AsJson, print_answer
from probe.cli.progress_bar import counting_bar
from probe.core.errors import reason_of
from probe.core.language import message
from probe.core.messages import complain, echo
from probe.core.storage.packed.pack import PackedReport

MOST_PROCESSES = 128


def pack(
    directory: Annotated[Path, typer.Argument(help="Where the ranks have written: MONITOR_OUTPUT_DIR of the run.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the packed run: new, or one to go on with.")],
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, max=MOST_PROCESSES, help="Processes that pack.")] = 1,
    follow: Annotated[bool, typer.Option("--follow", help="Pack what is closed while training goes on.")] = False,
    every: Annotated[
        float | None, typer.Option(min=0.1, help="With --follow: seconds between two times; 60 if not given.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Then compare all packed files with the index.")] = False,
    as_machine: AsJson = False,
) -> None:
    """Pack the files of all ranks into few large Parquet files with an index, which all analyses read.

    The source is never changed. If it is interrupted, the same command goes on. Exit code 0 if all was packed; 1 if
    something could not be read, the folder not be written, or a packed file is damaged; 2 for wrong use.
    """
    from probe.core.analysis.engines.workers import WorkersDiedError, in_order
    from probe.core.storage.packed.pack import PackError, damaged, pack_followed
    from probe.core.storage.packed.pack import pack as packed

    each = partial(in_order, processes=jobs)
    if every is not None and not follow:
        complain(message("--every has no effect without --follow: what is there is packed once"), "warning")
    seconds = 60.0 if every is None else every
    try:
        with refusing(ValueError, ImportError), counting_bar("packing", "files") as observe:
            if follow:
                done = pack_followed(directory, out, lambda report: _wait(seconds, as_machine, report), each, observe)
            else:
                done = packed(directory, out, each, observe)
    except (PackError, WorkersDiedError, OSError) as error:
        complain("{out}: not all is packed: {error}", out=out, error=reason_of(error))
        raise typer.Exit(1) from None
    wrong = damaged(out) if check else []
    if as_machine:
        print_answer("pack", {**done.as_json(), "damaged": wrong})
    else:
        echo(done.summary)
    for line in done.problems.lines():
        complain(line, "warning")
    for path in wrong:
        complain("{path}: not as it was written: remove {out} and pack again", path=path, out=out)
    raise typer.Exit(1 if done.problems.skipped or wrong else 0)


def _wait(seconds: float, as_machine: bool, report: PackedReport) -> bool:
    """Print the result so far, and wait; return True."""
    echo(report.summary, as_machine)
    time.sleep(seconds)
    return True
