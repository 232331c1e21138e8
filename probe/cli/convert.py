"""``probe csv2db`` and ``probe csv2tb``: the files of all ranks into one SQLite database, or into curves."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Annotated, Any

import typer

from probe.cli import refusing
from probe.cli.engines import EngineName, chosen_engine
from probe.cli.json_answer import AsJson, print_answer, problem_fields
from probe.cli.places import run_argument
from probe.cli.progress_bar import counting_bar
from probe.core.analysis.convert import csv2tb as curves
from probe.core.analysis.convert.csv2db import CSV2DBConfig, convert
from probe.core.errors import reason_of
from probe.core.messages import complain, echo
from probe.core.storage.problems import Problems

MonitorPath = Annotated[Any, run_argument(metavar="MONITOR_PATH")]
TimeStart = Annotated[str | None, typer.Option(help="Earliest directory, such as Dec03_21-34-40, itself included.")]
TimeEnd = Annotated[str | None, typer.Option(help="Latest directory, itself included.")]
Processes = Annotated[int, typer.Option("--process-num", "-j", help="Processes that convert.")]
DataTypes = Annotated[str | None, typer.Option(help="Kinds, such as actv,grad_reduced; all if left out.")]
OutputFolder = Annotated[
    Path | None,
    typer.Option("--output-dirpath", "-o", help="Else a folder in MONITOR_PATH, with the time in its name."),
]


def _listed(names: str | None) -> list[str] | None:
    """Names in a list separated by commas."""
    return None if names is None else [name.strip() for name in names.split(",") if name.strip()]


def _ended(command: str, summary: str, problems: Problems, as_machine: bool) -> None:
    """Print the summary and the problems, and end the command with the exit code that fits them."""
    if as_machine:
        print_answer(command, {"summary": summary, **problem_fields(problems)})
    for line in () if as_machine else (summary, *problems.lines()):
        echo(line)
    raise typer.Exit(1 if problems.skipped else 0)


def csv2db(
    monitor_path: MonitorPath,
    time_start: TimeStart = None,
    time_end: TimeEnd = None,
    process_num: Processes = 1,
    data_type_list: DataTypes = None,
    step_partition: Annotated[
        int | None, typer.Option(help="Steps in one table; else as the database has it, 500 in a new one.")
    ] = None,
    output_dirpath: OutputFolder = None,
    as_machine: AsJson = False,
) -> None:
    """Convert a run's CSV and Parquet files to OUTPUT/monitor_metrics.db; add to it if it exists.

    Exit code 0 if all was converted; 1 if something could not be read, or the database not be written; 2 for wrong use.
    """
    kinds = _listed(data_type_list)
    try:
        with refusing(ValueError, ImportError), counting_bar("converting", "files") as observe:
            config = CSV2DBConfig(
                monitor_path, time_start, time_end, process_num, kinds, step_partition, output_dirpath
            )
            done = convert(config, observe)
    except (sqlite3.Error, OSError) as error:
        where = output_dirpath or monitor_path
        complain(
            "{where}: the database cannot be written: {error}; convert again to go on",
            where=where,
            error=reason_of(error),
        )
        raise typer.Exit(1) from None
    _ended("csv2db", done.summary, done.problems, as_machine)


def csv2tb(
    monitor_path: MonitorPath,
    time_start: TimeStart = None,
    time_end: TimeEnd = None,
    process_num: Processes = 1,
    data_type_list: DataTypes = None,
    output_dirpath: OutputFolder = None,
    engine: EngineName = None,
    as_machine: AsJson = False,
) -> None:
    """Convert a run's CSV and Parquet files to curves: OUTPUT/rank{rank}/{kind}, for `tensorboard --logdir OUTPUT`.

    With --engine ranks are converted in pieces, PROCESS_NUM at a time; machines of a cluster must share both folders.

    Exit code 0 if all was converted; 1 if something could not be read or written; 2 for wrong use.
    """
    kinds = _listed(data_type_list)
    interval = monitor_path, time_start, time_end, process_num, kinds, output_dirpath
    if engine:
        with refusing(ValueError, ImportError), chosen_engine(engine, process_num, "converting") as chosen:
            done = curves.convert(*interval, engine=chosen)
    else:
        with refusing(ValueError, ImportError), counting_bar("converting", "folders") as observe:
            done = curves.convert(*interval, observe)
    _ended("csv2tb", done.summary, done.problems, as_machine)
