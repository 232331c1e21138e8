"""``probe report``: an HTML page about a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from probe.cli import refusing
from probe.cli.places import RunPlace
from probe.core.messages import complain, plural


def report(
    directory: RunPlace,
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = Path("report.html"),
    judge: Annotated[
        bool, typer.Option(help="Judge the files for the first cause; else show the run's own findings.")
    ] = True,
) -> None:
    """Write one HTML file about a run: first cause, findings, heatmaps of layers and steps, ranks side by side.

    The file needs no network and nothing but a browser. Exit code 0 if everything was read; 1 if data were left out, as
    printed line by line; 2 for wrong use.
    """
    from probe.core.analysis.diagnosis.analyse import analyse
    from probe.core.analysis.report.findings import card
    from probe.core.analysis.report.write import check_target, write_report
    from probe.core.messages import printable, printable_lines

    console = Console()
    with refusing(ValueError, ImportError, OSError), console.status("reading") as status:
        check_target(out)
        analysis = analyse(directory, progress=status.update) if judge else None
        if analysis is None:
            written = write_report(directory, out, observe=status.update)
        else:
            written = write_report(directory, out, card(analysis), status.update, analysis.problems)
    typer.echo(printable_lines(written.diagnosis.paragraph))
    ranks = f"{written.ranks} {plural(written.ranks, 'rank')}"
    typer.echo(printable(f"{written.path} ({written.size / 1e6:.1f} MB): {written.rows:,} rows of {ranks}"))
    for line in written.problems.lines():
        complain(line, "warning")
    raise typer.Exit(1 if written.problems.skipped else 0)
