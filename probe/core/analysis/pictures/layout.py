"""Layout of a report: the names that each row stands for, and the steps that each column stands for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from probe.core.analysis.pictures.survey import RowStages, Survey, SurveyRow, principal

MOST_ROWS = 600
TOO_COARSE = 8
"""Ratio of room to layers above which rows are groups of parts instead of layers."""
MOST_COLUMNS = 400
FEWEST_COLUMNS = 24
ENOUGH_COLUMNS = 60
"""Columns below which rows are reduced instead of columns."""
CELLS = 1_000_000
"""Cells of all heatmaps together: a page of 15 MB has room for these."""
FEW_RANKS = 64
"""Most ranks of a run with few ranks: there cells of single ranks have more digits."""
LINE_COLUMNS = 12
"""Fewest columns of single ranks, if the run has as many steps."""
RANK_CELLS = 1_200_000
"""Cells of single ranks, over all rows, of a run with few ranks."""
MANY_CELLS, MANY_RANK_CELLS = 450_000, 3_000_000
"""If there are many ranks: cells of all heatmaps, and of single ranks (to two digits, a byte a cell)."""
MANY_RANK_COLUMNS = 120


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

    def spans(self, last: int) -> list[tuple[int, int]]:
        """First and last step of each column of a run that ends with the step ``last``."""
        ends = np.maximum(np.minimum(self.starts + max(self.width, 1) - 1, last), self.starts)
        return list(zip(self.starts.tolist(), ends.tolist(), strict=True))

    def of(self, starts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Index of each column, by its first step."""
        return np.searchsorted(self.starts, starts)


@dataclass(frozen=True)
class SignalPlan:
    """Rows of a signal's heatmaps."""

    signal: str
    ops: tuple[str, ...]
    labels: tuple[str, ...]
    members: tuple[tuple[SurveyRow, ...], ...]
    """Names that each row stands for."""
    micro_stepped: bool = False

    @property
    def most_members(self) -> int:
        return max(map(len, self.members), default=1)


class RankSignal(NamedTuple):
    """Rows of a signal for which every rank has a line."""

    ops: tuple[str, ...]
    labels: tuple[str, ...]
    row_of: tuple[int, ...]
    """For each row of the page the row here."""
    stages: tuple[tuple[int, ...], ...]
    """For each row here the pipeline stages that have it."""


@dataclass(frozen=True)
class RankPlan:
    """Ranks over steps: a line for every rank, if there is room."""

    columns: Columns
    ranks_a_line: int
    lines: int
    signals: tuple[RankSignal, ...]


@dataclass(frozen=True)
class ReportPlan:
    """Rows and columns of the page."""

    columns: Columns
    signals: tuple[SignalPlan, ...]
    micro_steps: int
    ranks: RankPlan | None = None
    """None if there is one rank."""


def plan(survey: Survey, ranks: int, shares: Mapping[int, float] | None = None) -> ReportPlan:
    """Choose rows and columns that the page has room for; all of them if they fit.

    Args:
        shares: share of the ranks that each pipeline stage has; None if all ranks may have all names.
    """
    cells = CELLS if ranks <= FEW_RANKS else MANY_CELLS
    steps = _steps(survey)
    stages = RowStages(row for signal in survey.signals for row in signal.rows)
    groupings = [_Depths(signal.rows, stages.label) for signal in survey.signals]
    for most in (MOST_ROWS, MOST_ROWS // 2, MOST_ROWS // 4, MOST_ROWS // 8):
        rows = [_rows(depths, most) for depths in groupings]
        series = sum(len(own) * len(signal.ops) for own, signal in zip(rows, survey.signals, strict=True))
        columns = min(MOST_COLUMNS, cells // max(series, 1))
        if columns >= min(steps, ENOUGH_COLUMNS):
            break
    return ReportPlan(
        _columns(survey, max(columns, FEWEST_COLUMNS)),
        tuple(
            SignalPlan(signal.signal, signal.ops, tuple(own), tuple(map(tuple, own.values())), signal.micro_stepped)
            for signal, own in zip(survey.signals, rows, strict=True)
        ),
        survey.micro_steps,
        _ranks(survey, groupings, rows, ranks, shares or {}) if ranks > 1 and any(rows) else None,
    )


def _steps(survey: Survey) -> int:
    return len(survey.steps) or survey.last - survey.first + 1


RowGroups = dict[str, list[SurveyRow]]
"""Labels of rows with the names that they stand for."""


def _ranks(
    survey: Survey,
    groupings: Sequence[_Depths],
    rows: Sequence[RowGroups],
    ranks: int,
    shares: Mapping[int, float],
) -> RankPlan:
    """Plan the lines of ranks: every rank before every row, every row before every op."""
    many = ranks > FEW_RANKS
    cells, limit = (MANY_RANK_CELLS, MANY_RANK_COLUMNS) if many else (RANK_CELLS, MOST_COLUMNS)
    columns = min(_steps(survey), LINE_COLUMNS)
    stages = {member.pp_stage for own in rows for members in own.values() for member in members}
    least = len(rows) * sum(shares.get(stage, 1.0) for stage in stages)  # a row a signal and stage
    ranks_a_line = ceil(ranks * least * columns / cells)
    number = ceil(ranks / ranks_a_line)
    room = cells / (number * columns)

    def series(coarse: RowGroups) -> float:
        """Rows, each as the share of the ranks that have it."""
        return sum(min(1.0, sum(shares.get(stage, 1.0) for stage in _stages_of(own))) for own in coarse.values())

    most, coarse = max(map(len, rows)), list(rows)
    while most > 1 and sum(map(series, coarse)) > room:
        most = most * 7 // 8
        coarse = [_coarser(own, depths, most) for own, depths in zip(rows, groupings, strict=True)]
    all_ops = sum(series(own) * len(signal.ops) for own, signal in zip(coarse, survey.signals, strict=True)) <= room
    signals = tuple(
        RankSignal(
            signal.ops if all_ops else (principal(signal.ops),) * bool(signal.ops),
            tuple(own),
            _row_of(page, own),
            tuple(map(_stages_of, own.values())),
        )
        for signal, page, own in zip(survey.signals, rows, coarse, strict=True)
    )
    total = sum(series(own) * len(one.ops) for own, one in zip(coarse, signals, strict=True))
    most_columns = max(columns, min(limit, int(cells / max(number * total, 1))))
    return RankPlan(_columns(survey, most_columns), ranks_a_line, number, signals)


def _coarser(rows: RowGroups, depths: _Depths, most: int) -> RowGroups:
    """At most ``most`` groups, each of whole rows of the page: layers if they are, else blocks of rows."""
    if len(rows) <= most:
        return rows
    layers = _rows(depths, most)
    of = {member: n for n, own in enumerate(layers.values()) for member in own}
    nested = all(len({of[member] for member in own}) == 1 for own in rows.values())
    return layers if nested else _in_blocks(list(rows.items()), most)


def _stages_of(members: Iterable[SurveyRow]) -> tuple[int, ...]:
    return tuple(sorted({member.pp_stage for member in members}))


def _row_of(rows: RowGroups, coarse: RowGroups) -> tuple[int, ...]:
    of = {member: n for n, own in enumerate(coarse.values()) for member in own}
    return tuple(of[own[0]] for own in rows.values())


def _columns(survey: Survey, most: int) -> Columns:
    if survey.steps and len(survey.steps) <= most:
        return Columns(np.array(survey.steps, dtype=np.int64), 0)
    width = ceil((survey.last - survey.first + 1) / most)
    return Columns(np.arange(survey.first, survey.last + 1, width, dtype=np.int64), width)


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
