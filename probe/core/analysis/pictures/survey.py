"""Survey of a run: its names in the order of the model, its steps and micro steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from probe.core.naming import RUN, signal_of
from probe.core.storage.duckdb_reader import Rows, fill
from probe.core.storage.layout import MICRO_STEP, PP_STAGE
from probe.core.storage.table_files import TableFile

BACKWARD = frozenset({"actv_grad", "grad_unreduced"})
"""Signals whose rows come in the order of the backward pass."""
FEW_STEPS = 4096
"""Most steps that are listed one by one; of more only the first and the last are kept."""
HEAD = 50_000
"""Number of rows at the beginning of a file in which the names of one step are looked for."""


class SurveyRow(NamedTuple):
    """Row of the report; the same on every rank that has it."""

    pp_stage: int
    vpp_stage: int
    name: str


class RowStages:
    """Stages that labels of rows have, which are those in which the rows differ."""

    def __init__(self, rows: Iterable[SurveyRow], pipelined: bool | None = None) -> None:
        stages = {(row.pp_stage, row.vpp_stage) for row in rows}
        self._pipelined = len({pp for pp, _ in stages}) > 1 if pipelined is None else pipelined
        self._virtual = len({vpp for _, vpp in stages}) > 1

    def label(self, row: SurveyRow) -> str:
        """Return the name of a row, after its stages if there are several."""
        stages = f"pp{row.pp_stage}" * self._pipelined + f"vpp{row.vpp_stage}" * self._virtual
        return f"{stages}:{row.name}" if stages else row.name


@dataclass
class SignalSurvey:
    """Names and ops of one signal."""

    signal: str
    ops: tuple[str, ...]
    rows: list[SurveyRow]
    """Rows in the order of the model."""
    number: int
    """Number of rows in the files."""
    micro_stepped: bool = False
    """True if any file distinguishes micro steps."""


@dataclass
class Survey:
    """Signals and steps of a run."""

    signals: list[SignalSurvey] = field(default_factory=list)
    """Signals in causal order."""
    steps: list[int] = field(default_factory=list)
    """Steps, ascending; empty if there are more than ``FEW_STEPS``."""
    first: int = 0
    last: int = 0
    micro_steps: int = 1
    """Number of micro steps: one more than the highest index."""

    @property
    def number(self) -> int:
        return sum(signal.number for signal in self.signals)


class SurveyPart(NamedTuple):
    """Contents of the files of some ranks and steps of a signal; parts of a run are merged by :func:`merged`."""

    signal: str
    ops: tuple[str, ...]
    counted: dict[SurveyRow, tuple[int, int, int, int]]
    """First and last step, number and highest micro step of each row."""
    steps: frozenset[int]
    """Steps; of more than ``FEW_STEPS`` some."""
    heads: dict[int, tuple[int, int, tuple[SurveyRow, ...]]]
    """For each stage the number of the first directory, the first step of its first file, and the names there, in the
    order of the model."""
    micro_stepped: bool
    """True if any file distinguishes micro steps."""


def survey_parts(rows: Rows, stages: Mapping[int, int], numbers: Sequence[int]) -> list[SurveyPart]:
    """Survey each signal of ``rows``.

    Args:
        stages: pipeline stage of each directory of ``rows``.
        numbers: number of each directory among those of the run.
    """
    list_stages(rows, stages, numbers)
    parts = []
    for signal in rows.signals:
        if signal == RUN:
            continue
        counted, steps = _counted(rows, signal)
        if not counted or not rows.numbers(signal):
            continue
        heads = heads_of(rows, signal, stages, numbers)
        parts.append(SurveyPart(signal, rows.numbers(signal), counted, steps, heads, micro_stepped(rows, signal)))
    return parts


def list_stages(
    rows: Rows, stages: Mapping[int, int], numbers: Sequence[int], lines: Sequence[int | None] | None = None
) -> None:
    """Make the table ``stages``: of each directory the pipeline stage, the number among those of the run, and the line
    of its rank."""
    columns = dict.fromkeys(("directory", PP_STAGE, "number", "rank_line"), "INTEGER")
    line = lines or [None] * len(numbers)
    fill(rows.connection, "stages", columns, ((n, stage, numbers[n], line[n]) for n, stage in stages.items()))


def merged(parts: Iterable[SurveyPart]) -> Survey:
    """Merge the parts of a run; their order matters for the order of ops only."""
    of_signal: dict[str, SurveyPart] = {}
    for part in parts:
        known = of_signal.get(part.signal)
        of_signal[part.signal] = _together(known, part) if known else part
    found = Survey()
    steps: set[int] = set()
    positions: dict[SurveyRow, int] = {}
    for signal in sorted(of_signal, key=lambda signal: (signal in BACKWARD, signal_of(signal).phase, signal)):
        part = of_signal[signal]
        steps |= part.steps
        ends = part.counted.values()
        found.micro_steps = max(found.micro_steps, 1 + max(end[3] for end in ends))
        for row in _in_order(part):
            positions.setdefault(row, len(positions))
        # Virtual stages begin again after the last pipeline stage.
        names = sorted(part.counted, key=lambda row: (row.vpp_stage, row.pp_stage, positions[row]))
        number = sum(end[2] for end in ends)
        found.signals.append(SignalSurvey(signal, part.ops, names, number, part.micro_stepped))
    found.signals.sort(key=lambda one: (signal_of(one.signal).phase, one.signal))
    spans = [end for part in of_signal.values() for end in part.counted.values()]
    found.first, found.last = min((s[0] for s in spans), default=0), max((s[1] for s in spans), default=0)
    found.steps = sorted(steps) if len(steps) <= FEW_STEPS else []
    return found


def _together(one: SurveyPart, other: SurveyPart) -> SurveyPart:
    counted = dict(one.counted)
    for row, (first, last, number, micro) in other.counted.items():
        known = counted.get(row, (first, last, 0, micro))
        counted[row] = (min(known[0], first), max(known[1], last), known[2] + number, max(known[3], micro))
    heads = dict(one.heads)
    for stage, head in other.heads.items():
        heads[stage] = min(heads.get(stage, head), head)
    return SurveyPart(
        one.signal,
        tuple(dict.fromkeys((*one.ops, *other.ops))),
        counted,
        one.steps if len(one.steps) > FEW_STEPS else one.steps | other.steps,
        heads,
        one.micro_stepped or other.micro_stepped,
    )


def _counted(rows: Rows, signal: str) -> tuple[dict[SurveyRow, tuple[int, int, int, int]], frozenset[int]]:
    """First and last step, number and highest micro step of each row; and the steps."""
    row = "s.pp_stage, coalesce(v.vpp_stage, 0), coalesce(v.name, '')"
    query = (
        f"SELECT {row}, min(v.step), max(v.step), count(*), max(v.micro_step), grouping(v.step), v.step "  # noqa: S608
        f"FROM {rows.view(signal)} AS v JOIN stages AS s ON s.directory = v.directory WHERE v.step IS NOT NULL "
        f"GROUP BY GROUPING SETS (({row}), (v.step))"
    )
    cursor = rows.connection.cursor()
    cursor.execute(query)
    counted: dict[SurveyRow, tuple[int, int, int, int]] = {}
    steps: set[int] = set()
    while some := cursor.fetchmany(10_000):
        for row in some:
            if row[7]:
                counted[SurveyRow(*row[:3])] = (int(row[3]), int(row[4]), int(row[5]), int(row[6] or 0))
            elif len(steps) <= FEW_STEPS:
                steps.add(int(row[8]))
    cursor.close()
    return counted, frozenset(steps)


def micro_stepped(rows: Rows, signal: str) -> bool:
    """Return whether any file of a signal distinguishes micro steps."""
    if any(MICRO_STEP in file.columns for _, file in rows.files[signal]):
        return True
    parquet = [file for _, file in rows.files[signal] if not file.columns]
    return bool(parquet) and MICRO_STEP in rows.columns(rows.source(parquet))


def heads_of(
    rows: Rows, signal: str, stages: Mapping[int, int], numbers: Sequence[int]
) -> dict[int, tuple[int, int, tuple[SurveyRow, ...]]]:
    """Names at the first step of the first file of each stage, in the order of the model.

    Args:
        stages: pipeline stage of each directory of ``rows``.
        numbers: number of each directory among those of the run.
    """
    heads = {}
    for directory, file in first_files(rows.files[signal], stages):
        stage = stages[directory]
        query = f"SELECT vpp_stage, name, step FROM {rows.source([file])} LIMIT {HEAD}"  # noqa: S608 - paths
        head: Sequence[tuple[Any, ...]] = rows.connection.execute(query).fetchall()
        own = dict.fromkeys(SurveyRow(stage, int(row[0] or 0), row[1] or "") for row in head if row[2] == head[0][2])
        heads[stage] = (numbers[directory], file.first, tuple(reversed(own) if signal in BACKWARD else own))
    return heads


def first_files(files: Iterable[tuple[int, TableFile]], stages: Mapping[int, int]) -> list[tuple[int, TableFile]]:
    """First file of each pipeline stage, with the number of its directory."""
    found: dict[int, tuple[int, TableFile]] = {}
    for directory, file in files:
        found.setdefault(stages[directory], (directory, file))
    return list(found.values())


def met(heads: Mapping[int, tuple[int, int, tuple[SurveyRow, ...]]]) -> list[SurveyRow]:
    """Rows of the heads of all stages, each once."""
    return list(dict.fromkeys(row for _, (_, _, head) in sorted(heads.items()) for row in head))


def _in_order(part: SurveyPart) -> list[SurveyRow]:
    """Sort rows as the files have them, for each stage those of one rank first; the others by name."""
    return [row for row in met(part.heads) if row in part.counted] + sorted(part.counted.keys() - set(met(part.heads)))


def principal(ops: Sequence[str]) -> str:
    """Op that shows a tensor's size best."""
    return next((op for op in ("norm", "max", "mean", "min", "std") if op in ops), ops[0] if ops else "")
