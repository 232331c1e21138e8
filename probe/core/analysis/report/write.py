"""Report of a directory with any number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path
from typing import NamedTuple

from probe.core.analysis.engines import PieceEngine
from probe.core.analysis.report import sections
from probe.core.analysis.report.farthest import FarPart, far_part
from probe.core.analysis.report.findings import Diagnosis, Mark, dumped, kind, preliminary
from probe.core.analysis.report.layout import ReportPlan, plan
from probe.core.analysis.report.page import asset, page, plotly_bundle
from probe.core.analysis.report.payload import payload
from probe.core.analysis.report.performance import PerformancePart, performance_part
from probe.core.analysis.report.rank_table import rank_table
from probe.core.analysis.report.run_cells import CellWork, opened_run
from probe.core.analysis.report.run_curves import RunCurves, run_curves, run_section
from probe.core.analysis.report.survey import Survey
from probe.core.language import message
from probe.core.messages import plural
from probe.core.storage.directories import RecordedRun, last_run
from probe.core.storage.files import replacing
from probe.core.storage.location import Place
from probe.core.storage.problems import Problems

SCRIPTS = (
    *("cells.js", "drawing.js", "choosing.js", "ranks.js", "depth.js"),
    *("findings.js", "run.js", "performance.js", "report.js"),
)
MANY_RANKS_SCRIPTS = (*(name for name in SCRIPTS[:-1] if name != "ranks.js"), "lines.js", "farthest.js", SCRIPTS[-1])
"""Scripts of a page that groups ranks."""


class Written(NamedTuple):
    """Report that has been written."""

    path: Path
    size: int
    """Size in bytes."""
    ranks: int
    rows: int
    """Number of rows that were read."""
    problems: Problems
    diagnosis: Diagnosis


def write_report(
    root: Place,
    out: Path,
    diagnosis: Diagnosis | None = None,
    observe: Callable[[str], object] = lambda _: None,
    problems: Problems | None = None,
    engine: PieceEngine | None = None,
) -> Written:
    """Write the report of the last run in ``root``.

    Args:
        diagnosis: diagnosis by an analysis of the run; else one is made of the findings that the live rules dumped.
        observe: called with a line about each task as it begins.
        problems: problems of the analysis; those of reading for the report are added.
        engine: reads the run in pieces; None to read it in one go. The page is the same.

    Raises:
        ValueError: if there is no run in ``root``, or nowhere to write to.
        ImportError: if DuckDB or plotly is missing.
    """
    check_target(out)
    problems = problems or Problems()
    run = last_run(root, problems)
    observe(f"reading {len(run.directories)} {plural(len(run.directories), 'directory', 'directories')}")
    table = rank_table(run)
    with opened_run(run, table, problems, engine) as source:
        known, files = source.survey()
        chosen = plan(known, len(run.ranks), 1 + max(order.store for order in table.orders()), table.shares())
        orders = table.orders(chosen.fine.ranks_a_line) if chosen.fine else table.orders()[:1]
        work = CellWork(chosen, table, tuple(orders))
        data, bad = payload(source.cells(work, observe), run, known, work, files)
        rows = source.run_rows
        curves = run_curves(rows)
        speed = performance_part(rows, run, root)
        far = far_part(source, work, speed.paces, observe)
    if not known.signals and not curves.curves:
        problems.add(root, message("expected rows in the files of its ranks; there are none"))
    if diagnosis is None:
        is_of_rank = [directory.path for directory in run.directories] == [root]
        found, number = dumped(root.parent if is_of_rank else root, run, known.first, known.last, problems)
        diagnosis = preliminary(found, number, bad, known)
    observe("writing")
    with replacing(out) as file:
        file.write(_page(root, run, chosen, known, diagnosis, problems, data, curves, speed, far))
    return Written(out, out.stat().st_size, len(run.ranks), known.number, problems, diagnosis)


def check_target(out: Path) -> None:
    """Raise ValueError if no report can be written to ``out``, ImportError if plotly is missing."""
    if not out.parent.is_dir() or (out.exists() and not out.is_file()):
        raise ValueError(
            message("{out}: expected the name of a file in a directory that exists, such as report.html", out=out)
        )
    plotly_bundle()


def _page(
    root: Place,
    run: RecordedRun,
    plan: ReportPlan,
    known: Survey,
    diagnosis: Diagnosis,
    problems: Problems,
    data: Mapping[str, object],
    curves: RunCurves,
    speed: PerformancePart,
    far: FarPart,
) -> str:
    ranks = f"{len(run.ranks)} {plural(len(run.ranks), 'rank')}"
    numbers = f"{ranks}, steps {known.first} to {known.last}, {known.number:,} rows"
    return page(
        f"Training run {run.name}",
        [
            sections.first_cause(diagnosis),
            sections.timeline(diagnosis),
            *run_section(curves),
            *speed.sections,
            *sections.interactive(plan, len(run.ranks)),
            *far.sections,
            sections.configuration(run),
            sections.cost(run),
            sections.reading(problems),
        ],
        subtitle=f"{numbers} in {root.resolve()}",
        plotly=True,
        data={
            **data,
            "run": curves.curves,
            **({} if speed.data is None else {"performance": speed.data}),
            **({} if far.data is None else {"far": far.data}),
            "findings": [_finding(mark) for mark in diagnosis.findings],
        },
        scripts=[asset(name) for name in (SCRIPTS if plan.fine is None else MANY_RANKS_SCRIPTS)],
    )


def _finding(mark: Mark) -> dict[str, object]:
    value = mark.value if mark.value is not None and isfinite(mark.value) else None
    text = "" if mark.value is None else f"{mark.value:.6g}"
    return {**mark._asdict(), "value": value, "text": text, "kind": kind(mark)}
