"""``probe performance``: time, throughput, communication, slow ranks, devices and the score of a run."""

from __future__ import annotations

import json
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from probe.cli import refusing
from probe.cli.json_answer import AsJson, head, print_answer
from probe.cli.places import RunPlace
from probe.core.language import invalid, translated
from probe.core.messages import complain, printable

if TYPE_CHECKING:
    from probe.core.analysis.performance.analyse import Performance

WIDTH = 140
"""Characters of a line without a terminal."""


def performance(
    directory: RunPlace,
    hours: Annotated[
        float | None, typer.Option(help="Hours of training, counted back from the last step; all if not given.")
    ] = None,
    as_machine: AsJson = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Also write the JSON to this file.")] = None,
) -> None:
    """Show the performance of a run: throughput and its drops, time by phase, communication, slow ranks, a score.

    Drops are measured against the first healthy stretch of the whole run. Exit code 0 if nothing was found; 1 if there
    is a drop, a slow rank or a rating below Fair, or if data had to be left out; 2 for wrong use, or if the run has no
    numbers of its steps.
    """
    from probe.core.analysis.performance.analyse import analysed
    from probe.core.analysis.performance.export import as_json
    from probe.core.storage.files import check_target, replacing

    with refusing(ValueError, ImportError, OSError):
        if hours is not None and not (isfinite(hours) and hours > 0):
            raise invalid("--hours: expected a number above 0, got {hours}; leave it out for all", hours=hours)
        if out is not None:
            check_target(out, ".json")
        with Console(stderr=True).status("reading") as status:
            found, problems = analysed(directory, hours, status.update)
        fields = as_json(found, problems)
        if out is not None:
            with replacing(out) as file:
                file.write(json.dumps({**head("performance"), **fields}, indent=1, allow_nan=False) + "\n")
    if as_machine:
        print_answer("performance", fields)
    else:
        _show(found)
    for line in problems.lines():
        complain(line, "warning")
    raise typer.Exit(1 if found.found or problems.skipped else 0)


def _show(found: Performance) -> None:
    from probe.core.analysis.performance.summary import performance_tables, summary_lines

    console = Console()
    if not console.is_terminal:  # wide, so that no name is cut
        console = Console(width=WIDTH)
    for line in summary_lines(found):
        console.print(printable(translated(line)), highlight=False, markup=False, soft_wrap=True)
    for title, header, rows in performance_tables(found):  # a title within a table is broken at the table's width
        console.print()
        console.print(translated(title), style="bold", highlight=False, markup=False)
        table = Table(box=None, padding=(0, 2, 0, 0))
        for name in header:
            table.add_column(translated(name), overflow="fold")
        for row in rows:
            table.add_row(*(escape(printable(translated(cell))) for cell in row))
        console.print(table)
