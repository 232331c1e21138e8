"""Survey of a run: its names in the order of the model, its steps and micro steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from probe.core.naming import RUN, signal_of
from probe.core.storage.duckdb_reader import Rows
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


@dataclass
class SignalSurvey:
    """Names and ops of one signal."""

    signal: str
    ops: tuple[str, ...]
    rows: list[SurveyRow]
    """Rows in the order of the model."""
    number: int
    """Number of rows in the files."""


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


def survey(rows: Rows, stages: Mapping[int, int]) -> Survey:
    """Read all ``rows`` once.

    Args:
        stages: pipeline stage of each directory of ``rows``.
    """
    _list_stages(rows, stages)
    found = Survey()
    steps: set[int] = set()
    ends: list[int] = []
    positions: dict[SurveyRow, int] = {}
    shown = (signal for signal in rows.signals if signal != RUN)
    signals = sorted(shown, key=lambda signal: (signal in BACKWARD, signal_of(signal).phase, signal))
    for signal in signals:
        counted = _counted(rows, signal, steps)
        if not counted or not rows.numbers(signal):
            continue
        found.micro_steps = max(found.micro_steps, 1 + max(int(row[-1] or 0) for row in counted))
        ends += [int(end) for row in counted for end in row[3:5]]
        names = [SurveyRow(row[0], row[1], row[2]) for row in counted]
        for row in _in_order(rows, signal, stages, names):
            positions.setdefault(row, len(positions))
        # Virtual stages begin again after the last pipeline stage.
        names.sort(key=lambda row: (row.vpp_stage, row.pp_stage, positions[row]))
        number = sum(row[5] for row in counted)
        found.signals.append(SignalSurvey(signal, rows.numbers(signal), names, number))
    found.signals.sort(key=lambda one: (signal_of(one.signal).phase, one.signal))
    found.first, found.last = min(ends, default=0), max(ends, default=0)
    found.steps = sorted(steps) if len(steps) <= FEW_STEPS else []
    return found


def _list_stages(rows: Rows, stages: Mapping[int, int]) -> None:
    rows.connection.execute("CREATE OR REPLACE TABLE stages (directory INTEGER, pp_stage INTEGER)")
    rows.connection.execute(
        "INSERT INTO stages SELECT unnest(?::INTEGER[]), unnest(?::INTEGER[])", [list(stages), list(stages.values())]
    )


def _counted(rows: Rows, signal: str, steps: set[int]) -> list[tuple[Any, ...]]:
    """Stage, virtual stage, name, first and last step, number and highest micro step of each row; fills ``steps``."""
    row = "s.pp_stage, coalesce(v.vpp_stage, 0), coalesce(v.name, '')"
    query = (
        f"SELECT {row}, min(v.step), max(v.step), count(*), max(v.micro_step), grouping(v.step), v.step "  # noqa: S608
        f"FROM {rows.view(signal)} AS v JOIN stages AS s ON s.directory = v.directory WHERE v.step IS NOT NULL "
        f"GROUP BY GROUPING SETS (({row}), (v.step))"
    )
    cursor = rows.connection.cursor()
    cursor.execute(query)
    counted: list[tuple[Any, ...]] = []
    while some := cursor.fetchmany(10_000):
        counted += [row[:7] for row in some if row[7]]
        for row in some:
            if not row[7] and len(steps) <= FEW_STEPS:
                steps.add(int(row[8]))
    cursor.close()
    return counted


def _in_order(rows: Rows, signal: str, stages: Mapping[int, int], names: Iterable[SurveyRow]) -> list[SurveyRow]:
    """Sort ``names`` as the files have them, for each stage those of one rank first; the others by name."""
    met: dict[SurveyRow, None] = {}
    files: dict[int, TableFile] = {}
    for directory, file in rows.files[signal]:
        files.setdefault(stages[directory], file)
    for stage, file in sorted(files.items()):
        query = f"SELECT vpp_stage, name, step FROM {rows.source([file])} LIMIT {HEAD}"  # noqa: S608 - paths
        head: Sequence[tuple[Any, ...]] = rows.connection.execute(query).fetchall()
        own = dict.fromkeys(SurveyRow(stage, int(row[0] or 0), row[1] or "") for row in head if row[2] == head[0][2])
        met.update(dict.fromkeys(reversed(own) if signal in BACKWARD else own))
    known = set(names)
    return [row for row in met if row in known] + sorted(known - set(met))


def principal(ops: Sequence[str]) -> str:
    """Op that shows a tensor's size best."""
    return next((op for op in ("norm", "max", "mean", "min", "std") if op in ops), ops[0] if ops else "")
