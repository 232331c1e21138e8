"""``probe report``: an HTML page about a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from probe.cli import refusing
from probe.cli.engines import EngineName, Explain, Jobs, in_this_process, progress_text
from probe.cli.engines import explain as explain_pieces
from probe.cli.places import RunPlace, usual_place
from probe.core.language import message, translated
from probe.core.messages import complain


def report(
    directory: RunPlace = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = Path("report.html"),
    judge: Annotated[
        bool, typer.Option(help="Judge the files for the first cause; else show the run's own findings.")
    ] = True,
    engine: EngineName = None,
    jobs: Jobs = None,
    explain: Explain = False,
) -> None:
    """Write one HTML file about a run: first cause, findings, heatmaps of layers and steps, ranks side by side.

    The file needs no network and nothing but a browser; it is the same for any number of processes. Exit code 0 if
    everything was read; 1 if data were left out, as printed line by line; 2 for wrong use.
    """
    from probe.core.analysis.diagnosis.analyse import analyse
    from probe.core.analysis.engines import engine_of
    from probe.core.analysis.pictures.run_cells import pieces_of_report
    from probe.core.analysis.report.findings import card
    from probe.core.analysis.report.write import check_target, write_report
    from probe.core.messages import printable, printable_lines

    directory = usual_place() if directory is None else directory
    if explain:
        with refusing(ValueError, OSError):
            for what, own in pieces_of_report(directory):
                typer.echo(f"{what}:")
                explain_pieces(own)
        return
    console = Console()
    with (
        refusing(ValueError, ImportError, OSError),
        console.status("reading") as status,
        engine_of(engine, jobs, lambda done: status.update(progress_text(done))) as pieces,
    ):
        check_target(out)
        chosen = None if in_this_process(engine, jobs) else pieces
        analysis = analyse(directory, progress=status.update, engine=chosen) if judge else None
        diagnosis, problems = (card(analysis), analysis.problems) if analysis else (None, None)
        written = write_report(directory, out, diagnosis, status.update, problems, pieces)
    typer.echo(printable_lines(written.diagnosis.paragraph))
    text = "{path} ({size:.1f} MB): {rows:,} rows of {ranks} ranks"
    if written.ranks == 1:
        text = "{path} ({size:.1f} MB): {rows:,} rows of {ranks} rank"
    size_line = message(text, path=str(written.path), size=written.size / 1e6, rows=written.rows, ranks=written.ranks)
    typer.echo(printable(translated(size_line)))
    for line in written.problems.lines():
        complain(line, "warning")
    raise typer.Exit(1 if written.problems.skipped else 0)
