"""Progress bars of commands: on standard error, and in a terminal alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn


@contextmanager
def progress_bar(
    description: str, *columns: ProgressColumn, total: float | None = None, **fields: Any
) -> Iterator[Callable[..., None]]:
    """Show a bar with ``columns`` after it; yield the function that changes what it shows, such as ``completed``.

    Args:
        fields: what the columns show besides.
    """
    console = Console(stderr=True)
    parts = (TextColumn("{task.description}"), BarColumn(), *columns)
    hidden = not console.is_terminal  # it would leave an empty line
    with Progress(*parts, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task(description, total=total, **fields)

        def show(**changes: Any) -> None:
            bar.update(task, **changes)

        yield show


@contextmanager
def counting_bar(description: str, unit: str) -> Iterator[Callable[[int, int, object], None]]:
    """Show how many of all files or folders are done; yield the function that an observer is."""
    with progress_bar(description, MofNCompleteColumn(), TextColumn(unit), TimeRemainingColumn()) as show:

        def observe(done: int, total: int, _: object) -> None:
            show(completed=done, total=total)

        yield observe
