"""``probe sql``: questions about the rows of a run, in SQL."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from probe.cli import refusing
from probe.cli.engines import EngineName, Explain, Jobs, chosen_engine, explain
from probe.cli.json_answer import AsJson, head, print_answer
from probe.cli.places import RunPlace
from probe.core.analysis.query_views import cell, write_csv, write_json
from probe.core.language import invalid, message, translated
from probe.core.messages import complain, counted, printable
from probe.core.storage.files import check_target, replacing

if TYPE_CHECKING:
    from probe.core.analysis.query import OpenRun
    from probe.core.analysis.query_views import SqlAnswer

MOST_SHOWN = 1000
"""Rows that a table shows."""
NARROWEST = 160
"""Characters of a line without a terminal."""


class AnswerFormat(str, Enum):
    """Formats of an answer."""

    table = "table"
    csv = "csv"
    json = "json"
    parquet = "parquet"


def sql(
    directory: RunPlace,
    query: Annotated[str, typer.Argument(help="One SELECT; without it the tables are listed.")] = "",
    map_query: Annotated[str, typer.Option("--map", help="A query of each piece of the run; needs --reduce.")] = "",
    reduce_query: Annotated[
        str, typer.Option("--reduce", help="A query of the answers of all pieces: the table mapped.")
    ] = "",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write: its suffix is the format, csv, json or parquet.")
    ] = None,
    form: Annotated[
        AnswerFormat | None, typer.Option("--format", help="Else as the file is called, or a table.")
    ] = None,
    engine: EngineName = None,
    jobs: Jobs = None,
    explained: Explain = False,
    as_machine: AsJson = False,
) -> None:
    """Answer one SQL query about the rows of a run: each signal is a table.

    With --map and --reduce, pieces of whole ranks are read by several processes or machines. A query reads the run and
    nothing else. Exit code 0 if everything was read; 1 if data were left out, as printed line by line; 2 for wrong use.
    """
    from probe.core.analysis.query import open_run

    with refusing(ValueError, ImportError, OSError):
        if as_machine and (out is not None or form is not None):
            raise invalid("expected one of --json, --format and -o, got several; leave the others out")
        chosen = _format(out, form)
        if bool(query) + bool(map_query or reduce_query) > 1 or bool(map_query) != bool(reduce_query):
            raise invalid("expected one query, or both --map and --reduce; add what is missing, or leave one out")
        printed = sys.stdout
        with (
            redirect_stdout(sys.stderr),  # Ray prints messages of its own
            chosen_engine(engine, jobs) as pieces,
            open_run(directory, pieces) as run,
            ExitStack() as stack,  # what was left out may be the reason of a refusal, and is printed before it
        ):
            stack.callback(_warn, run)
            _check_apart(run, out)
            if explained:
                explain(run.pieces(query or map_query), printed, "sql" if as_machine else "")
            elif query or map_query:
                with _answered(run, query, map_query, reduce_query) as answer:
                    if as_machine:
                        _write_answer(answer, printed)
                    else:
                        _write(run, answer, chosen, out, printed)
            elif as_machine:
                print_answer("sql", {"run": run.run.name, "tables": [*run.views()]}, printed)
            else:
                _list(run, printed)
    raise typer.Exit(1 if run.problems.skipped else 0)


def _warn(run: OpenRun) -> None:
    for line in run.problems.lines():
        complain(line, "warning")


@contextmanager
def _answered(run: OpenRun, query: str, map_query: str, reduce_query: str) -> Iterator[SqlAnswer]:
    if query:
        yield run.answer(query)
    else:
        with run.reduced(map_query, reduce_query) as answer:
            yield answer


def _format(out: Path | None, form: AnswerFormat | None) -> AnswerFormat:
    """Return the format of the answer.

    Raises:
        ValueError: if it is neither named nor shown by the file's name, or if the answer cannot be written there.
    """
    if out is None:
        if form is AnswerFormat.parquet:
            raise invalid("--format parquet: expected -o with the name of a file")
        return form or AnswerFormat.table
    check_target(out)
    if form is None and out.suffix[1:] not in AnswerFormat.__members__:
        known = ", ".join(f".{each.value}" for each in AnswerFormat if each is not AnswerFormat.table)
        raise invalid("{out}: expected a name that ends with one of {known}, or --format", out=out, known=known)
    return form or AnswerFormat(out.suffix[1:])


def _check_apart(run: OpenRun, out: Path | None) -> None:
    """Raise ValueError if a file of the run would be replaced."""
    folders = (each.path for each in run.run.directories if isinstance(each.path, Path))
    if out is not None and any(out.resolve().is_relative_to(folder.resolve()) for folder in folders):
        raise invalid("{out}: expected the name of a file outside of the directories of ranks", out=out)


def _list(run: OpenRun, printed: TextIO) -> None:
    """Print the tables that queries can read."""
    head = message("{run}: {tables}", run=run.run.name, tables=counted(len(run.signals), "table"))
    typer.echo(printable(translated(head)), printed)
    for view in run.views():
        line = message(
            "{signal}: {rows} of {ranks}, steps {first} to {last}" if view.rows else "{signal}: {rows} of {ranks}",
            signal=view.signal,
            rows=counted(view.rows, "row"),
            ranks=counted(view.ranks, "rank"),
            first=view.first_step,
            last=view.last_step,
        )
        typer.echo(printable(translated(line)), printed)
        typer.echo(printable(f"  {', '.join(view.columns)}"), printed)


def _write(run: OpenRun, answer: SqlAnswer, form: AnswerFormat, out: Path | None, printed: TextIO) -> None:
    """Write an answer to a file, which appears when it is complete, or print it."""
    if form is AnswerFormat.table:
        _output(out or printed, lambda file: _write_table(answer, file))
    elif form is AnswerFormat.json:
        _output(out or printed, lambda file: write_json(answer.columns, answer.rows(), file))
    elif form is AnswerFormat.csv:
        _output(out or printed, lambda file: write_csv(answer.columns, answer.rows(), file, escaped=out is None))
    else:
        made = run.scratch / "answer"
        answer.write_parquet(made)
        with made.open("rb") as source:
            _output(out or printed, lambda file: shutil.copyfileobj(source, file.buffer))


def _write_answer(answer: SqlAnswer, file: TextIO) -> None:
    """Write an answer as one JSON object, row by row: it may have any number of rows."""
    fields = json.dumps({**head("sql"), "columns": answer.columns})
    file.write(fields.removesuffix("}") + ', "rows": ')
    write_json(answer.columns, answer.rows(), file)
    file.write("}\n")


def _output(out: Path | TextIO, write: Callable[[TextIO], None]) -> None:
    if not isinstance(out, Path):
        write(out)
        return
    with replacing(out) as file:
        write(file)


def _write_table(answer: SqlAnswer, file: TextIO) -> None:
    console = Console(file=file)
    if not console.is_terminal:  # wide, so that no name is cut
        console = Console(file=file, width=NARROWEST)
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for column in answer.columns:
        table.add_column(escape(printable(column)), overflow="fold")
    source = answer.rows()
    for row in islice(source, MOST_SHOWN):
        table.add_row(*(escape(printable(cell(value))) for value in row))
    console.print(table)
    if next(source, None) is not None:
        complain("the first {most_shown:,} rows are shown; --format csv or -o for all", "info", most_shown=MOST_SHOWN)
