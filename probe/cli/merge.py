"""``probe merge``: the numbers of whole tensors from the files of the ranks that share them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from probe.cli import refusing
from probe.cli.json_answer import AsJson, print_answer
from probe.cli.places import RunPlace
from probe.core.analysis.merge import merge_directory
from probe.core.language import message, translated
from probe.core.messages import counted, printable
from probe.core.storage.location import on_disk


def merge(
    directory: RunPlace,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Where to write; else DIRECTORY/merged.")] = None,
    as_machine: AsJson = False,
) -> None:
    """Merge the ranks' files: the numbers of whole tensors that FSDP, ZeRO or tensor parallelism divide among ranks.

    Exit code 0 if all tensors could be merged; 1 if parts are missing, a file cannot be read, ranks differ in tensors
    that they should hold alike, or there is more than one run; 2 for wrong use.
    """
    console = Console(stderr=as_machine)
    with refusing(ValueError, ImportError, OSError), console.status("merging") as status:
        target = out or on_disk(directory / "merged")
        report = merge_directory(directory, target, lambda what: status.update(f"merging {what}"))
    code = 1 if report.problems or report.incomplete or report.differing else 0
    if as_machine:
        print_answer("merge", {"out": target, **vars(report)})
        raise typer.Exit(code)
    rows, files = counted(report.rows, "row"), counted(len(report.files), "file")
    lines: list[str] = [message("{rows} in {files} in {target}", rows=rows, files=files, target=target)]
    lines += [*report.problems, *report.notes]
    if report.incomplete:
        rows = counted(report.incomplete, "row is incomplete", "rows are incomplete")
        lines.append(message("{rows} (column complete is 0): parts are missing", rows=rows))
    for tensor in report.differing[:10]:
        lines.append(message("ranks hold the same tensor, but their numbers differ: {tensor}", tensor=tensor))
    for line in lines:
        console.print(printable(translated(line)), markup=False)
    raise typer.Exit(code)
