"""``probe track``: the files of a run, shown in a tracker of experiments."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from probe.cli import refusing
from probe.cli.json_answer import AsJson, print_answer, problem_fields
from probe.cli.places import RunPlace
from probe.core.language import invalid, message
from probe.core.messages import complain, counted, echo

if TYPE_CHECKING:
    from probe.core.analysis.tracked_run import TrackedRun
    from probe.core.storage.location import Place
    from probe.core.trackers import Cell, Tracker


def track(
    directory: RunPlace,
    to: Annotated[str | None, typer.Option("--to", help="The tracker: wandb, mlflow, swanlab or trackio.")] = None,
    follow: Annotated[
        bool, typer.Option(help="Go on until the run has ended, and read new steps as they come.")
    ] = False,
    project: Annotated[str | None, typer.Option(help="Its project; the job's name if not given.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run there; that of its directory if not given.")] = None,
    layers: Annotated[
        list[str] | None, typer.Option(help="Layers that come first, such as 'layers.0.*'; may be repeated.")
    ] = None,
    full: Annotated[bool, typer.Option(help="At most 5,000 series instead of 200.")] = False,
    report: Annotated[bool, typer.Option(help="Keep the report of probe report with the run.")] = True,
    seconds: Annotated[float, typer.Option(min=0.1, help="With --follow, time between two looks.")] = 5.0,
    idle: Annotated[float, typer.Option(min=1.0, help="With --follow, time without a new step that ends it.")] = 1800.0,
    as_machine: AsJson = False,
) -> None:
    """Show the files of all ranks in a tracker of experiments: numbers of the run, layers, findings, first cause.

    A run of its own is begun there; nothing is changed in the files. Exit code 0 if everything was read; 1 if data were
    left out, as printed line by line; 2 for wrong use, or if the tracker refuses.
    """
    from probe.core.analysis.tracked_run import TrackedRun
    from probe.core.trackers import TRACKERS, TrackerEnded, TrackerTarget, check_tracker, new_tracker
    from probe.core.trackers.tracked_series import MOST_FULL, MOST_SERIES

    with refusing(ValueError, ImportError, OSError, TrackerEnded):
        run = TrackedRun(directory, MOST_FULL if full else MOST_SERIES, layers or ())
        if to not in TRACKERS:
            raise invalid(
                "--to: expected one of {names}; got {to}: name one of these",
                names=", ".join(TRACKERS),
                to=to or message("nothing"),
            )
        check_tracker(to, f"probe track --to {to}")
        facts: dict[str, Cell] = {"job": run.job, "ranks": len(run.run.ranks), "run": run.run.name}
        target = TrackerTarget(project or run.job or "probe", name or run.run.name, facts, joins=False)
        tracker = new_tracker(to, target)
        tracker.begin()
        try:
            number = _send(run, tracker, follow, seconds, idle, as_machine)
            _finish(run, tracker, directory, report)
        finally:
            tracker.end()
    if as_machine:
        print_answer("track", {"run": run.run.name, "tracker": to, "steps": number, **problem_fields(run.problems)})
    else:
        echo("{run}: {steps} in {to}", run=run.run.name, steps=counted(number, "step"), to=to)
    for line in run.problems.lines():
        complain(line, "warning")
    raise typer.Exit(1 if run.problems.skipped else 0)


def _send(run: TrackedRun, tracker: Tracker, follow: bool, seconds: float, idle: float, quiet: bool) -> int:
    """Hand over all steps; with ``follow`` until the run has ended, or has had no new step for ``idle`` seconds."""
    number, latest = 0, time.monotonic()
    while follow and not run.ended and time.monotonic() - latest < idle:
        if new := run.send(tracker, whole=False):
            number, latest = number + new, time.monotonic()
            echo("step {step}", quiet, step=run.last_step)
        time.sleep(seconds)
    new = run.send(tracker, whole=True)
    if follow and new:
        echo("step {step}", quiet, step=run.last_step)
    return number + new


def _finish(run: TrackedRun, tracker: Tracker, directory: Place, report: bool) -> None:
    """Hand over the first cause, the findings and the report."""
    from probe.core.analysis.diagnosis.analyse import analyse
    from probe.core.analysis.report.findings import card
    from probe.core.analysis.report.write import write_report

    analysis = analyse(directory)
    with tempfile.TemporaryDirectory(prefix="probe-") as folder:
        path = Path(folder) / "report.html" if report else None
        if path is not None:
            write_report(directory, path, card(analysis), problems=analysis.problems)
        run.finish(tracker, analysis, path)
    run.problems.extend(analysis.problems)
