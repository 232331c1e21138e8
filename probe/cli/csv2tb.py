"""``probe csv2tb``: the files of all ranks into curves for TensorBoard."""

from __future__ import annotations

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
from probe.core.analysis.convert.csv2tb import convert
from probe.core.messages import complain


def csv2tb(
    monitor_path: MonitorPath,
    time_start: TimeStart = None,
    time_end: TimeEnd = None,
    process_num: Processes = 1,
    data_type_list: DataTypes = None,
    output_dirpath: OutputFolder = None,
) -> None:
    """Convert a run's CSV and Parquet files to curves: OUTPUT/rank{rank}/{kind}, for `tensorboard --logdir OUTPUT`.

    Exit code 0 if all was converted; 1 if something could not be read or written; 2 for wrong use.
    """
    try:
        with progress("folders") as observe:
            done = convert(
                monitor_path, time_start, time_end, process_num, listed(data_type_list), output_dirpath, observe
            )
    except ValueError as error:
        complain(str(error))
        raise typer.Exit(2) from None
    ended(done.summary, done.problems)
