"""``probe anomalies``: the first cause of a run's anomalies, and its consequences."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from probe.cli import refuse
from probe.cli.engines import EngineName, Explain, Jobs, chosen_engine, in_this_process
from probe.cli.engines import explain as explain_pieces
from probe.cli.json_answer import AsJson, print_answer
from probe.cli.places import RunPlace
from probe.core.analysis.anomaly_processor import first, write
from probe.core.analysis.diagnosis.analyse import Analysis, analyse
from probe.core.analysis.diagnosis.causality import Cause
from probe.core.analysis.diagnosis.check_findings import check_texts
from probe.core.analysis.diagnosis.evaluate import nothing_judged
from probe.core.analysis.diagnosis.explain import value
from probe.core.analysis.diagnosis.export import as_json, entry, key_of_entry
from probe.core.analysis.diagnosis.located_finding import Located
from probe.core.analysis.diagnosis.run_findings import run_lines
from probe.core.analysis.diagnosis.run_verdict import card_about, verdict_about
from probe.core.analysis.pieces import by_ranks
from probe.core.analysis.report.findings import summary
from probe.core.errors import reason_of
from probe.core.language import invalid, joined, message, translated
from probe.core.messages import complain, has_blocks, in_number, printable, shown_path, terminal_width, wrapped
from probe.core.storage.anomaly_runs import Kept
from probe.core.storage.directories import find, last_run
from probe.core.storage.layout import cell_name
from probe.core.storage.location import Place
from probe.core.storage.problems import Problems

WIDTH = 160
"""Characters of a line without a terminal."""
COLUMNS = tuple(map(message, ("cause", "step", "rank", "signal", "row", "value", "rule")))
LEAST = ("rule", "signal", "cause")
"""Columns that a narrow terminal leaves out, the first one first."""
MOST_STEPS = 100_000
"""Most steps that ``--steps`` may name."""


def anomalies(
    directory: RunPlace,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="File such as first.json, or folder that gets anomaly_analyse.json."),
    ] = None,
    topk: Annotated[int, typer.Option("--topk", "-k", min=1, help="Number of findings that are shown.")] = 8,
    steps: Annotated[str, typer.Option(help="Steps whose findings count, such as 10-20,25; all if not given.")] = "",
    as_machine: AsJson = False,
    why: Annotated[
        bool, typer.Option("--why", help="Print the reasons: evidence, consequences, other findings.")
    ] = False,
    engine: EngineName = None,
    jobs: Jobs = None,
    explain: Explain = False,
) -> None:
    """Name the first cause in the files of all ranks: kind, place, rank and step, and what followed.

    The files are judged again by the rules of the run (the default ones if it had none), and replicas are compared.

    Exit code 0 if nothing was found in what was judged, 1 if something was found or data were skipped, 2 for wrong use
    or if nothing could be judged: then the findings of the run itself are shown.
    """
    try:
        wanted = chosen(steps)
        if explain:
            _explain(directory, as_machine)
            return
        analysis = _analysed(directory, wanted, engine, jobs)
        shown = [(key_of_entry(each), entry(each, cause, analysis.topology)) for each, cause in _first(analysis, topk)]
        written = write(out, shown) if out else None
    except (ValueError, ImportError, OSError) as error:
        complain(reason_of(error))
        _show_dumped(directory, topk)
        raise typer.Exit(2) from None
    if as_machine:
        print_answer("anomalies", as_json(analysis))
    else:
        _show(analysis, topk, why, directory)
    for line in [*analysis.notes, *analysis.problems.lines()]:
        complain(line, "warning")
    if written:
        complain("written: {written}", "info", written=written)
    if not analysis.extent.rows and not analysis.of_checks:
        refuse(nothing_judged(analysis.run))
    grave = any(each.is_grave for each in analysis.of_checks)
    found = analysis.diagnosis or analysis.of_run or analysis.unexplained or grave
    raise typer.Exit(1 if found or analysis.problems.skipped else 0)


def _analysed(directory: Place, wanted: list[int], engine: str | None, jobs: int | None) -> Analysis:
    """Analyse a run in this process, or in pieces by the engine of the options."""
    if in_this_process(engine, jobs):
        with Console(stderr=True).status("reading") as status:
            return analyse(directory, wanted, status.update)
    # Ray prints to standard output, for instance that a machine is lost.
    with redirect_stdout(sys.stderr), chosen_engine(engine, jobs) as pieces:
        return analyse(directory, wanted, engine=pieces)


def _explain(directory: Place, as_machine: bool) -> None:
    """Print the pieces of the run and what reading them takes."""
    problems = Problems()
    explain_pieces(by_ranks(last_run(directory, problems)), machine="anomalies" if as_machine else "")
    for line in problems.lines():
        complain(line, "warning")


def chosen(text: str) -> list[int]:
    """Parse steps such as ``10-20,25``.

    Raises:
        ValueError: if it cannot be read.
    """
    found: list[int] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            expected = "--steps: expected steps such as 10-20,25; got {text!r}; leave it out for all"
            raise invalid(expected, text=text)
        span = range(int(first), int(last or first) + 1)
        if len(found) + span.stop - span.start > MOST_STEPS:
            raise invalid(
                "--steps: expected {most_steps} steps or fewer, or no --steps for all; got {text!r}",
                most_steps=MOST_STEPS,
                text=text,
            )
        found += span
    return found


def _first(analysis: Analysis, topk: int) -> list[tuple[Located, Cause]]:
    """First findings of the main incident, then of the others."""
    main = analysis.diagnosis.incident.findings if analysis.diagnosis else []
    return [*main, *(pair for other in analysis.others for pair in other.incident.findings)][:topk]


def _show(analysis: Analysis, topk: int, why: bool, directory: Place) -> None:
    console, number = Console(), analysis.number
    if not console.is_terminal:  # wide, so that no name is cut
        console = Console(width=WIDTH)
    verdict = verdict_about(analysis)
    place, room = printable(shown_path(str(directory))), terminal_width(sys.stdout)
    if card := card_about(verdict, analysis, place, has_blocks(sys.stdout), room):
        _print(console, [*card, ""], style="bold red" if verdict.grade == "critical" else "bold yellow")
    found = in_number(number, "{number:,} finding", "{number:,} findings")
    if analysis.extent.rows and analysis.diagnosis:
        found = joined("; ", [analysis.extent.text, found])
    head: str = message("{run}: {findings}", run=analysis.run.name, findings=found)
    if not analysis.extent.rows and not number:  # nothing was judged, as the next line says
        head = analysis.run.name
    _print(console, [head, *summary(analysis), *run_lines(analysis.of_run), *check_texts(analysis.of_checks)])
    if analysis.diagnosis is None:
        return
    if why:
        console.print()
        console.print(printable(translated(analysis.diagnosis.text)), highlight=False, markup=False)
    console.print()
    unbounded = console.options.update_width(sys.maxsize)
    for left_out in range(len(LEAST) + 1):
        table = _table(analysis, topk, LEAST[:left_out])
        if console.measure(table, options=unbounded).maximum <= console.width:
            break
    console.print(table)
    for other in analysis.others if why else ():
        brief = message(
            "Separate incident, steps {first} to {last}: {text}",
            first=other.incident.first,
            last=other.incident.last,
            text=other.text,
        )
        console.print(printable(translated(brief)), highlight=False, markup=False)


def _print(console: Console, lines: Sequence[str], style: str | None = None) -> None:
    """Print lines as they are, the first one in a style."""
    for number, line in enumerate(lines):
        text = printable(translated(line))
        shown = wrapped(text, terminal_width(sys.stdout), 2 + len(text) - len(text.lstrip()))
        console.print(shown, style=None if number else style, highlight=False, markup=False, soft_wrap=True)


def _show_dumped(directory: Place, topk: int) -> None:
    """Show the findings of the latest run if no run has files: a run with the format api alone writes none."""
    with suppress(ValueError, ImportError, OSError):
        find(directory, Problems())
        return  # there are files, and something else is wrong
    try:
        kept = Kept(directory, Problems())
        found = first(kept, topk)
    except (ValueError, ImportError, OSError):  # there are none
        return
    heading = message(
        "nothing could be judged; the rules of {run} reported {number:,} while it ran:", run=kept.of, number=kept.number
    )
    typer.echo(printable(translated(heading)))
    for _, each in found:
        typer.echo(printable(each.message))


def _table(analysis: Analysis, topk: int, left_out: Sequence[str]) -> Table:
    """Return the table of the first findings.

    Args:
        left_out: columns for which the terminal is too narrow.
    """
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    shown = [number for number, column in enumerate(COLUMNS) if column not in left_out]
    for number in shown:
        table.add_column(translated(COLUMNS[number]), overflow="fold")
    for located, cause in _first(analysis, topk):
        finding = located.finding
        micro = message(" micro {number}", number=finding.key.micro_step) if finding.micro_stepped else ""
        stage = message(" stage {number}", number=located.pp_stage) if located.pp_stage else ""
        step, rank = joined("", (str(finding.step), micro)), joined("", (str(finding.rank), stage))
        cells = message(cause.value), step, rank, finding.signal, cell_name(finding.key), value(finding), finding.rule
        table.add_row(*(escape(printable(translated(cells[number]))) for number in shown))
    return table
