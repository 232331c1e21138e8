"""``probe report``: an HTML page about a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from probe.cli import refusing
from probe.cli.engines import EngineName, Explain, Jobs, in_this_process, progress_text
from probe.cli.engines import explain as explain_pieces
from probe.cli.json_answer import AsJson, print_answer, problem_fields
from probe.cli.places import RunPlace
from probe.core.analysis.pieces import reading_cost
from probe.core.messages import complain, echo


def report(
    directory: RunPlace,
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = Path("report.html"),
    judge: Annotated[
        bool, typer.Option(help="Judge the files for the first cause; else show the run's own findings.")
    ] = True,
    engine: EngineName = None,
    jobs: Jobs = None,
    explain: Explain = False,
    as_machine: AsJson = False,
) -> None:
    """Write one HTML file about a run: first cause, findings, heatmaps of layers and steps, ranks side by side.

    The file needs no network and nothing but a browser; it is the same for any number of processes. Exit code 0 if
    everything was read; 1 if data were left out, as printed line by line; 2 for wrong use.
    """
    from probe.core.analysis.diagnosis.analyse import analyse
    from probe.core.analysis.engines import engine_of
    from probe.core.analysis.pictures.run_cells import pieces_of_report
    from probe.core.analysis.report.findings import card
    from probe.core.analysis.report.write import write_report
    from probe.core.messages import printable_lines
    from probe.core.storage.files import PAGES, check_target

    if explain:
        with refusing(ValueError, OSError):
            parts = pieces_of_report(directory)
            if as_machine:
                print_answer("report --explain", {"costs": [reading_cost(pieces) for _, pieces in parts]})
                return
            for what, pieces_of_part in parts:
                typer.echo(f"{what}:")
                explain_pieces(pieces_of_part)
        return
    console = Console(stderr=as_machine)
    with (
        refusing(ValueError, ImportError, OSError),
        console.status("reading") as status,
        engine_of(engine, jobs, lambda done: status.update(progress_text(done))) as pieces,
    ):
        check_target(out, *PAGES)
        chosen = None if in_this_process(engine, jobs) else pieces
        analysis = analyse(directory, progress=status.update, engine=chosen) if judge else None
        diagnosis, problems = (card(analysis), analysis.problems) if analysis else (None, None)
        written = write_report(directory, out, diagnosis, status.update, problems, pieces)
    if as_machine:
        fields = {"path": written.path, "bytes": written.size, "ranks": written.ranks, "rows": written.rows}
        print_answer("report", {**fields, "text": written.diagnosis.paragraph, **problem_fields(written.problems)})
    else:
        template = "{path} ({size:.1f} MB): {rows:,} rows of {ranks} ranks"
        if written.ranks == 1:
            template = "{path} ({size:.1f} MB): {rows:,} rows of {ranks} rank"
        numbers = {"size": written.size / 1e6, "rows": written.rows, "ranks": written.ranks}
        typer.echo(printable_lines(written.diagnosis.paragraph))
        echo(template, path=str(written.path), **numbers)
    for line in written.problems.lines():
        complain(line, "warning")
    raise typer.Exit(1 if written.problems.skipped else 0)
