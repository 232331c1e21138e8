"""Layout of a report: the names that each row stands for, and the steps that each column stands for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
import numpy.typing as npt

from probe.core.analysis.report.survey import Survey, SurveyRow, principal

MOST_ROWS = 600
TOO_COARSE = 8
"""Ratio of room to layers above which rows are groups of parts instead of layers."""
MOST_COLUMNS = 400
FEWEST_COLUMNS = 24
ENOUGH_COLUMNS = 60
"""Columns below which rows are reduced instead of columns."""
CELLS = 1_000_000
"""Cells of all heatmaps together: a page of 15 MB has room for these."""
MOST_LINES = 64
"""Most ranks, or groups of consecutive ranks, that are shown side by side."""
LINE_COLUMNS = 12
RANK_CELLS = 1_200_000
"""Cells of the ranks side by side, over all rows."""


@dataclass(frozen=True)
class Columns:
    """Steps that columns stand for."""

    starts: npt.NDArray[np.int64]
    """First step of each column."""
    width: int
    """Steps from one column to the next; 0 if each column is one step."""

    def sql(self) -> str:
        """SQL of the first step of the column that ``v.step`` belongs to."""
        return f"v.step - (v.step - {self.starts[0]}) % {self.width}" if self.width else "v.step"

    def of(self, starts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Index of each column, by its first step."""
        return np.searchsorted(self.starts, starts)


@dataclass(frozen=True)
class SignalPlan:
    """Rows of a signal's heatmaps."""

    signal: str
    ops: tuple[str, ...]
    rank_ops: tuple[str, ...]
    """Ops for which ranks are shown side by side."""
    labels: tuple[str, ...]
    members: tuple[tuple[SurveyRow, ...], ...]
    """Names that each row stands for."""

    @property
    def most_members(self) -> int:
        return max(map(len, self.members), default=1)


@dataclass(frozen=True)
class ReportPlan:
    """Rows and columns of the page."""

    columns: Columns
    rank_columns: Columns
    ranks_a_line: int
    signals: tuple[SignalPlan, ...]
    micro_steps: int


def plan(survey: Survey, ranks: int) -> ReportPlan:
    """Plan as many rows and columns as there is room for; all of them if they fit."""
    steps = len(survey.steps) or survey.last - survey.first + 1
    label = _labeller(survey)
    groupings = [_Depths(signal.rows, label) for signal in survey.signals]
    for most in (MOST_ROWS, MOST_ROWS // 2, MOST_ROWS // 4, MOST_ROWS // 8):
        rows = [_rows(depths, most) for depths in groupings]
        series = sum(len(own) * len(signal.ops) for own, signal in zip(rows, survey.signals, strict=True))
        columns = min(MOST_COLUMNS, CELLS // max(series, 1))
        if columns >= min(steps, ENOUGH_COLUMNS):
            break
    number = sum(map(len, rows))
    lines = min(ranks, MOST_LINES, max(1, RANK_CELLS // max(number * min(steps, LINE_COLUMNS), 1)))
    all_ops = series * lines * min(steps, ENOUGH_COLUMNS) <= RANK_CELLS
    rank_columns = max(LINE_COLUMNS, min(MOST_COLUMNS, RANK_CELLS // max((series if all_ops else number) * lines, 1)))
    return ReportPlan(
        _columns(survey, max(columns, FEWEST_COLUMNS)),
        _columns(survey, rank_columns),
        ceil(ranks / lines),
        tuple(
            SignalPlan(
                signal.signal,
                signal.ops,
                signal.ops if all_ops else (principal(signal.ops),) * bool(signal.ops),
                tuple(own),
                tuple(map(tuple, own.values())),
            )
            for signal, own in zip(survey.signals, rows, strict=True)
        ),
        survey.micro_steps,
    )


def _columns(survey: Survey, most: int) -> Columns:
    if survey.steps and len(survey.steps) <= most:
        return Columns(np.array(survey.steps, dtype=np.int64), 0)
    width = ceil((survey.last - survey.first + 1) / most)
    return Columns(np.arange(survey.first, survey.last + 1, width, dtype=np.int64), width)


def _labeller(survey: Survey) -> Callable[[SurveyRow], str]:
    """Return a function that labels a row by its name, after its stages if there are several."""
    several_pp = len({row.pp_stage for signal in survey.signals for row in signal.rows}) > 1
    several_vpp = len({row.vpp_stage for signal in survey.signals for row in signal.rows}) > 1

    def label(row: SurveyRow) -> str:
        stages = f"pp{row.pp_stage}" * several_pp + f"vpp{row.vpp_stage}" * several_vpp
        return f"{stages}:{row.name}" if stages else row.name

    return label


class _Depths:
    """Names of a signal, grouped by their first components; each grouping is computed once."""

    def __init__(self, rows: Sequence[SurveyRow], label: Callable[[SurveyRow], str]) -> None:
        self._rows, self._label = rows, label
        self._known: dict[int, dict[str, list[SurveyRow]]] = {}
        self.deepest = 1 + max((row.name.count(".") for row in rows), default=0)

    def __getitem__(self, depth: int) -> dict[str, list[SurveyRow]]:
        """Group rows whose names agree in the first ``depth`` components."""
        if depth not in self._known:
            groups = self._known[depth] = {}
            for row in self._rows:
                kept = ".".join(row.name.split(".")[:depth])
                name = self._label(row._replace(name=kept)) + (".*" if kept != row.name else "")
                groups.setdefault(name, []).append(row)
        return self._known[depth]


def _rows(depths: _Depths, most: int) -> dict[str, list[SurveyRow]]:
    """Labels with their rows: names; if these are too many, the layers they lie in, or several layers each."""
    depth = depths.deepest
    while depth > 1 and len(depths[depth]) > most:
        depth -= 1
    fits = len(depths[depth]) <= most
    if fits and (depth == depths.deepest or len(depths[depth]) > most // TOO_COARSE):
        return depths[depth]
    return _in_blocks(list(depths[depth + fits].items()), most)


def _in_blocks(groups: Sequence[tuple[str, list[SurveyRow]]], most: int) -> dict[str, list[SurveyRow]]:
    size = ceil(len(groups) / most)
    blocks = [groups[at : at + size] for at in range(0, len(groups), size)]
    return {
        f"{block[0][0]} to {block[-1][0]}" if len(block) > 1 else block[0][0]: [row for _, own in block for row in own]
        for block in blocks
    }
