"""Report of a directory with any number of ranks: the page of ``probe view`` with its answers inside."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from probe.core.analysis.engines import PieceEngine
from probe.core.analysis.performance.export import performance_picture
from probe.core.analysis.pictures.cells import Span
from probe.core.analysis.pictures.farthest import FarKind, far_picture
from probe.core.analysis.pictures.layout import ReportPlan, SignalPlan, plan
from probe.core.analysis.pictures.payload import payload
from probe.core.analysis.pictures.rank_table import RankTable, rank_table
from probe.core.analysis.pictures.run_cells import CellWork, SignalCells, opened_run
from probe.core.analysis.pictures.run_details import (
    number_curves,
    number_names,
    run_description,
    run_details,
    signal_description,
)
from probe.core.analysis.pictures.static_page import static_page
from probe.core.analysis.pictures.survey import RowStages, Survey, SurveyRow, principal
from probe.core.analysis.report.findings import (
    Diagnosis,
    Label,
    Mark,
    dumped,
    labelled,
    placed,
    preliminary,
    stages_of_ranks,
)
from probe.core.language import is_active, message
from probe.core.messages import plural
from probe.core.storage.directories import RecordedRun, last_run
from probe.core.storage.files import check_target, replacing
from probe.core.storage.layout import STAGE
from probe.core.storage.location import Place
from probe.core.storage.problems import Problems

MOST_PROBLEMS = 100
BAD_OF_A_SIGNAL = 100
"""Most rows of a signal whose first numbers that are not finite are listed."""
POINTS = 1000
"""Most points of a curve of a number of the run; beyond that a point stands for several steps."""
MOST_CURVES = 24
"""Most numbers of the run that have a curve."""
LAST_STEP = 1 << 40
RUN = "/api/runs/0"
"""Address of the run on the page."""


class RunSteps(NamedTuple):
    """First and last step of a run."""

    first_step: int
    last_step: int


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
        ImportError: if DuckDB is missing.
    """
    check_target(out)
    problems = problems or Problems()
    run = last_run(root, problems)
    observe(f"reading {len(run.directories)} {plural(len(run.directories), 'directory', 'directories')}")
    table = rank_table(run)
    bad: list[Mark] = []
    with opened_run(run, table, problems, engine) as source:
        known, files = source.survey()
        work = CellWork(plan(known, len(run.ranks), table.shares()), table)
        names = number_names(source.run_rows)
        curves = number_curves(source.run_rows, names[:MOST_CURVES], Span(0, LAST_STEP), POINTS) if names else None
        look = lambda signal, found: bad.extend(_first_bad(found, signal, run))  # noqa: E731 - of one use
        observe("reading the cells of the page")
        cells = payload(source.cells(work), run, known, work, files, curves, look)
        speed = performance_picture(source.run_rows, run, root)
        far = far_picture(source, work, speed.paces, observe)
    if not known.signals and curves is None:
        problems.add(root, message("expected rows in the files of its ranks; there are none"))
    if diagnosis is None:
        is_of_rank = [directory.path for directory in run.directories] == [root]
        found, number = dumped(root.parent if is_of_rank else root, run, known.first, known.last, problems)
        diagnosis = preliminary(found, number, bad, known)
    label, stages = _label_of(work.plan, table), stages_of_ranks(run)
    ranks_a_line = work.plan.ranks.ranks_a_line if work.plan.ranks else 1
    observe("writing")
    answers = {
        RUN: {
            **_description(root, run, known, table, problems),
            **_judged(root, diagnosis, label, stages),
            "signals": list(_signals(work.plan)),
            "orders": [order.title for order in table.orders(ranks_a_line)],
            "numbers": curves.lines if curves else [],
            "performance": speed.data is not None,
            "farthest": far is not None,
        },
        f"{RUN}/details": run_details(run),
        f"{RUN}/performance": speed.data,
        f"{RUN}/farthest": None if far is None else [_labelled(one, label, stages) for one in far],
        "/api/language": "zh" if is_active() else "",
        "/api/command": f"probe view {shlex.quote(str(root.resolve()))}",
    }
    with replacing(out) as file:
        file.write(static_page(f"{root.resolve().name} – probe", answers, cells))
    return Written(out, out.stat().st_size, len(run.ranks), known.number, problems, diagnosis)


def _description(
    root: Place, run: RecordedRun, known: Survey, table: RankTable, problems: Problems
) -> dict[str, object]:
    kept = sorted(problems.kept, key=lambda problem: (str(problem.path), problem.line or 0, problem.what))
    return {
        "number": 0,
        "name": root.resolve().name,
        "location": str(root.resolve()),
        "known": True,
        "alive": False,
        "ended": True,
        **RunSteps(known.first, known.last)._asdict(),
        "ranks": len(run.ranks),
        "read": known.number,
        **run_description(run, table),
        # Pieces of a run find them in another order.
        "problems": replace(problems, kept=kept).lines(MOST_PROBLEMS),
        "cost": None,
    }


def _judged(root: Place, diagnosis: Diagnosis, label: Label, stages: Mapping[int, int]) -> dict[str, object]:
    """Fields of the run's description that follow from its diagnosis."""
    findings, text, cause = labelled(diagnosis.findings, label, stages), diagnosis.text, diagnosis.cause
    if cause is None and findings:
        unplaced = {"kind": diagnosis.paragraph.split("\n")[0], "row": ""}
        cause = {**(findings[0].shown if diagnosis.is_placed else unplaced), "text": text}
    shown = replace(diagnosis, findings=findings, cause=cause, page=placed(diagnosis.page, label))
    return {
        "analysis": "done",
        "analysis_error": "",
        "analysis_command": f"probe anomalies {shlex.quote(str(root))}",
        **shown.fields(len(findings)),
        "health": "found" if findings else "healthy" if diagnosis.clear else "incomplete",
        "summary": "" if findings else text,
    }


def _labelled(far: FarKind, label: Label, stages: Mapping[int, int]) -> dict[str, object]:
    """Farthest ranks of a signal, each with the label of its row."""
    rows = [
        {**own, "row": label(far.signal, stages.get(own["rank"], 0), own[STAGE], own["tensor"])} for own in far.ranks
    ]
    return {"signal": far.signal, "op": far.op, "ranks": rows}


def _label_of(plan: ReportPlan, table: RankTable) -> Label:
    """Return the function for the labels of the page's rows, which may stand for several names."""
    known = {
        (signal.signal, member): label
        for signal in plan.signals
        for label, members in zip(signal.labels, signal.members, strict=True)
        for member in members
    }
    other = RowStages((row for _, row in known), len(np.unique(table.stages)) > 1)

    def label_of(signal: str, pp_stage: int, vpp_stage: int, name: str) -> str:
        row = SurveyRow(pp_stage, vpp_stage, name)
        return known.get((signal, row)) or other.label(row)

    return label_of


def _signals(plan: ReportPlan) -> Iterator[dict[str, object]]:
    for signal in plan.signals:
        fields = signal_description(signal.signal, signal.ops, signal.labels, signal.micro_stepped)
        yield {**fields, "grouped": signal.most_members > 1}


def _first_bad(found: SignalCells, signal: SignalPlan, run: RecordedRun) -> Iterator[Mark]:
    """First number of each row that is not finite, of the principal op, else of another."""
    listed: set[int] = set()
    first = principal(signal.ops)
    for op, cells in sorted(found.heat.cells.items(), key=lambda pair: pair[0] != first):
        bad, places, values = (cells["nan"] + cells["inf"]) > 0, found.heat.places.of(cells), cells.shown()
        for row in np.flatnonzero(bad.any(axis=1)).tolist():
            if row in listed or len(listed) >= BAD_OF_A_SIGNAL:
                continue
            listed.add(row)
            column = int(np.argmax(bad[row]))
            step, directory, micro_step, member = (int(array[row, column]) for array in places)
            about = signal.members[row][member]
            rank = run.directories[directory].rank
            micro, value = micro_step if signal.micro_stepped else None, float(values[row, column])
            yield Mark("", signal.signal, about.name, op, value, step, rank, micro, "", "", about.vpp_stage, row)
