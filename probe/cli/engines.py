"""Options of commands that work in pieces, and their progress on standard error."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, TextIO

import typer
from rich.progress import TextColumn, TimeElapsedColumn

from probe.cli.json_answer import print_answer
from probe.cli.progress_bar import progress_bar
from probe.core.analysis.engines import ADDRESS, PieceEngine, PiecesDone, engine_of
from probe.core.analysis.pieces import Piece, reading_cost
from probe.core.language import joined, message, translated
from probe.core.messages import counted

EngineName = Annotated[
    str | None,
    typer.Option(
        "--engine",
        help="local, ray, or the address of a Ray cluster such as ray://host:10001; Ray if RAY_ADDRESS is set, else "
        "local.",
        show_default=False,
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        "-j",
        min=1,
        help="Pieces that are worked on at a time: processes, or tasks of Ray; 1, or the CPUs of the cluster, if not "
        "given.",
        show_default=False,
    ),
]
Explain = Annotated[
    bool, typer.Option("--explain", help="Print the pieces, bytes and requests that the command takes; read no table.")
]


def in_this_process(spec: str | None, jobs: int | None, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether the options ask for no other process, so that a run is read as a whole."""
    return (spec == "local" or (spec is None and not environ.get(ADDRESS))) and (jobs or 1) == 1


@contextmanager
def chosen_engine(spec: str | None, jobs: int | None, what: str = "reading") -> Iterator[PieceEngine]:
    """Open the engine of the options, and show its progress in a terminal.

    Raises:
        ValueError: if there is no such engine, or its cluster cannot be used.
        ImportError: if Ray is asked for and not installed.
    """
    with progress_bar(what, TextColumn("{task.fields[about]}"), TimeElapsedColumn(), about="") as update:

        def show(done: PiecesDone) -> None:
            update(completed=done.done, total=done.total or None, about=progress_text(done))

        with engine_of(spec, jobs, show) as engine:
            yield engine


def progress_text(done: PiecesDone) -> str:
    """Return the progress for people: pieces, rows (else bytes) a second, and the time that is left."""
    of = "{done:.0f} of {total} pieces" if done.total else "{done:.0f} pieces"
    parts = [message(of, done=done.done, total=done.total)]
    if done.seconds:
        rows, size = done.rows / done.seconds, done.bytes / done.seconds / 1e6
        parts.append(message("{rows:,.0f} rows/s" if done.rows else "{size:,.1f} MB/s", rows=rows, size=size))
        if done.seconds_left is not None:
            parts.append(message("{seconds:.0f} s left", seconds=done.seconds_left))
    return translated(joined(", ", parts))


def explain(pieces: Iterable[Piece], out: TextIO | None = None, machine: str = "") -> None:
    """Print what the pieces are, and what reading them takes, on ``out``: standard output if None.

    Args:
        machine: command whose answer is printed as JSON; empty for a line.
    """
    held = list(pieces)
    cost = reading_cost(held)
    if machine:
        print_answer(f"{machine} --explain", {"costs": [cost]}, out)
        return
    typer.echo(translated(cost.text), out)
    if held and "://" in str(held[0].root):
        requests = counted(cost.requests, "request")
        typer.echo(translated(message("at most {requests} to object storage", requests=requests)), out)
