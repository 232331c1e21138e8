"""``probe csv2db``: the files of all ranks into one SQLite database."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Annotated

import typer

from probe.cli.converting import (
    DataTypes,
    MonitorPath,
    OutputFolder,
    Processes,
    TimeEnd,
    TimeStart,
    ended,
    listed,
    progress,
)
from probe.core.analysis.convert.csv2db import CSV2DBConfig, convert
from probe.core.messages import complain


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
) -> None:
    """Convert a run's CSV and Parquet files to OUTPUT/monitor_metrics.db; add to it if it exists.

    Exit code 0 if all was converted; 1 if something could not be read, or the database not be written; 2 for wrong use.
    """
    try:
        config = CSV2DBConfig(
            monitor_path, time_start, time_end, process_num, listed(data_type_list), step_partition, output_dirpath
        )
        with progress("files") as observe:
            done = convert(config, observe)
    except ValueError as error:
        complain(str(error))
        raise typer.Exit(2) from None
    except (sqlite3.Error, OSError) as error:
        where = Path(output_dirpath or monitor_path)
        complain(f"{where}: the database cannot be written: {error}; convert again to go on")
        raise typer.Exit(1) from None
    ended(done.summary, done.problems)
