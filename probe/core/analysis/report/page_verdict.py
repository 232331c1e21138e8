"""Verdict about a run as the page opens on it: in both languages, with the place that it selects and the loss."""

from __future__ import annotations

import math
from typing import Any

from probe.core.analysis.diagnosis.analyse import Analysis
from probe.core.analysis.diagnosis.run_verdict import picture_about, verdict_about
from probe.core.language import in_language, message
from probe.core.naming import LOSS, LOSS_ROOT, RUN
from probe.core.storage.anomaly_json import in_json
from probe.core.storage.duckdb_reader import Rows
from probe.core.storage.layout import PP_STAGE
from probe.core.storage.problems import Problems
from probe.core.verdict import Verdict
from probe.core.verdict_picture import VerdictPicture

POINTS = 80
"""Most points of the loss in a list of runs."""
CHINESE = "zh_CN"


def page_verdict(analysis: Analysis) -> dict[str, Any]:
    """Return ``verdict``, with its texts in Chinese under ``zh``; ``focus``, the place that the page selects; and
    ``loss``, steps and values of the lowest rank. NaN and the infinities are texts."""
    verdict = verdict_about(analysis)
    picture = picture_about(verdict, analysis)
    texts = {"kind": in_language(message(verdict.kind), CHINESE), "text": in_language(verdict.text, CHINESE)}
    advice = [in_language(text, CHINESE) for text in verdict.next_steps]
    if analysis.diagnosis is not None:
        texts["paragraph"] = in_language(analysis.diagnosis.text, CHINESE)
    looked = [in_language(text, CHINESE) for text in verdict.looked.at]
    return {
        "verdict": {**verdict.as_json(), "zh": {**texts, "next_steps": advice, "looked": {"at": looked}}},
        "focus": None if picture is None else _focus(picture, verdict, analysis),
        "loss": _loss(analysis),
    }


def _focus(picture: VerdictPicture, verdict: Verdict, analysis: Analysis) -> dict[str, Any]:
    """Return the row that a picture names, the steps around the first bad one, and the row's values: of two steps
    before, and of the first bad one."""
    name, cells = picture.rows[picture.named]
    rank = verdict.ranks[0] if verdict.ranks else analysis.run.directories[0].rank
    directory = next(each for each in analysis.run.directories if each.rank == rank)
    bad = picture.first_bad()
    steps = [*sorted(step for step in cells if step < picture.since)[-2:], *([bad[0]] if bad else [])]
    return {
        "signal": picture.signal,
        "op": picture.column,
        "name": name,
        PP_STAGE: directory.manifest.pipeline_stage,
        "rank": rank,
        "step": bad[0] if bad else picture.since,
        "from": picture.steps[0],
        "to": picture.steps[-1],
        "values": [[step, in_json(cells[step])] for step in steps],
    }


def _loss(analysis: Analysis) -> list[list[Any]]:
    """Return steps and values of the loss, the first of each stretch of steps or one that is not finite, and the last;
    empty if it was not recorded. The program's own comes before that of the backward."""
    rank = analysis.run.ranks[0]
    own = [directory for directory in analysis.run.directories if directory.rank == rank]
    with Rows(own, Problems()) as rows:  # the analysis has reported what cannot be read
        if RUN not in rows.signals:
            return []
        named = f"(SELECT min(name) FROM {rows.view(RUN)} WHERE name IN ('{LOSS}', '{LOSS_ROOT}'))"  # noqa: S608 - our own view
        source = f"{rows.view(RUN)} WHERE name = {named} AND value IS NOT NULL AND step IS NOT NULL"
        first, last = rows.connection.execute(f"SELECT min(step), max(step) FROM {source}").fetchone() or (None, None)  # noqa: S608 - our own view
        if first is None:
            return []
        width = math.ceil((last - first + 1) / POINTS)
        earliest = f"CASE WHEN isfinite(value) THEN step ELSE step - {1 << 60} END"
        points = rows.connection.execute(
            f"SELECT arg_min(step, {earliest}), arg_min(value, {earliest}), max(step), arg_max(value, step) "  # noqa: S608
            f"FROM {source} GROUP BY (step - ?) // ? ORDER BY 1",
            [first, width],
        ).fetchall()
    ends = [(points[-1][2], points[-1][3])] if points[-1][2] != points[-1][0] else []
    return [[step, in_json(value)] for step, value in [*((point[0], point[1]) for point in points), *ends]]
