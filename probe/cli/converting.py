"""Arguments and output of the verbs that convert."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from probe.core.analysis.convert.select import Observer
from probe.core.messages import printable
from probe.core.storage.problems import Problems

MonitorPath = Annotated[Path, typer.Argument(help="Where the ranks have written: MONITOR_OUTPUT_DIR of the run.")]
TimeStart = Annotated[str | None, typer.Option(help="Earliest directory, such as Dec03_21-34-40, itself included.")]
TimeEnd = Annotated[str | None, typer.Option(help="Latest directory, itself included.")]
Processes = Annotated[int, typer.Option("--process-num", "-j", help="Processes that convert.")]
DataTypes = Annotated[str | None, typer.Option(help="Kinds, such as actv,grad_reduced; all if left out.")]
OutputFolder = Annotated[
    Path | None,
    typer.Option("--output-dirpath", "-o", help="Else a folder in MONITOR_PATH, with the time in its name."),
]


def listed(names: str | None) -> list[str] | None:
    """Names in a list separated by commas."""
    return None if names is None else [name.strip() for name in names.split(",") if name.strip()]


@contextmanager
def progress(unit: str) -> Iterator[Observer]:
    """Progress bar on standard error, shown only in a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit))
    console = Console(stderr=True)
    hidden = not console.is_terminal  # it would leave an empty line
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("converting", total=None)
        yield lambda done, total, _: bar.update(task, completed=done, total=total)


def ended(summary: str, problems: Problems) -> None:
    """Print the summary and the problems, and end the command with the exit code that fits them."""
    typer.echo(printable(summary))
    for line in problems.lines():
        typer.echo(line)
    raise typer.Exit(1 if problems.skipped else 0)
