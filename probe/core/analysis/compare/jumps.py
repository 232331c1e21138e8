"""Modules whose outputs differ by much more than what goes into them: where a difference begins, however small it is.

A tolerance for whole runs has to allow for rounding that grows from step to step. Within one module nothing grows: from
inputs, parameters and gradients that agree it computes numbers that agree, to a few units of rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

from probe.core.analysis.compare.piece_rows import PieceRows, positions
from probe.core.naming import signal_of
from probe.core.rules.causal_order import Position, position
from probe.core.storage.duckdb_reader import Connection, fill

FORWARD, BACKWARD, PARAMETERS = "actv", "actv_grad", "param_origin"
FLOWS = frozenset({FORWARD, BACKWARD, PARAMETERS})
"""Signals of what goes into modules and comes out of them."""
FACTOR = 10
"""Multiple of the difference of what goes in from which on what comes out has not the difference from there."""
DIGITS = 1e-6
"""Difference of numbers that are equal to the six digits that are written."""
LEAST: dict[str, float] = {"float64": 2e-5, "float32": 2e-5, "float16": 0.02, "bfloat16": 0.1, "float8": 0.25}
"""Difference of what comes out below which it may be the rounding of the module, by the coarsest dtype. The largest of
healthy pairs of a small GPT over 40 steps, where inputs agree, was below 1e-5 in float32, and 0.013 in bfloat16."""
MEASURED = frozenset({"norm", "mean", "std", "min", "max"})
"""Ops by which tensors are compared here: those whose differences are in parts of the tensor's size."""
AT_ONCE = 20_000
"""Rows that are judged at a time."""
_LAST_STEP = 1 << 62
BEHIND = 10
"""Steps around the first jump in which its cause is looked for."""
MOST = 20
"""Modules that are named."""


class Jump(NamedTuple):
    """Module that turns what agrees into what differs."""

    module: str
    """Name in A; empty for the root module."""
    signal: str
    """``actv`` for a difference in the forward, ``actv_grad`` in the backward."""
    step: int
    micro_step: int
    rank: int
    """Rank of A."""
    call: int
    before: float
    """Largest relative difference of what goes in; in the backward of activations too."""
    after: float
    """Largest relative difference of what comes out."""
    position: int
    """Position in the order of execution of its signal and step."""

    @property
    def phase(self) -> Position:
        """Part of training in which it is."""
        return position(self.step, signal_of(self.signal).phase, self.micro_step)

    @property
    def order(self) -> tuple[Position, int, int, str, int]:
        """Sort key in the order of cause and effect."""
        return self.phase, self.position, self.rank, self.module, self.call


def start(connection: Connection) -> None:
    """Make an empty table for the differences of the rows of :data:`FLOWS`."""
    connection.execute(_FLOWS)


def add(connection: Connection, signal: str, pairs: str) -> str:
    """Add the rows of a signal that the query ``pairs`` pairs; return SQL that reads these again."""
    connection.execute(_PAIRED.format(pairs=pairs))
    connection.execute(_NAMES, {"signal": signal})
    connection.execute(_ADD, {"signal": signal})
    return "FROM paired"


def flow(excesses: Sequence[tuple[str, str]], relative: float) -> str:
    """SQL of the relative difference of a pair of rows, by SQL of the multiple of the tolerance of each op."""
    measured = [excess for op, excess in excesses if op in MEASURED]
    return f"greatest(0, {', '.join(measured)}) * {relative!r}" if measured else "0"


def jumps(rows: PieceRows) -> list[Jump]:
    """Return the first jumps of a piece, those of the first step, micro step and signal that has some."""
    connection, pairing = rows.connection, rows.pairing
    _list_owners(connection)
    has_parameters = PARAMETERS in pairing.signals
    if not has_parameters and not pairing.begins:
        return []
    last = _LAST_STEP if has_parameters else pairing.steps[0]
    connection.execute("DROP TABLE IF EXISTS paired")
    for steps in _spans(connection, pairing.jump, last):
        query = _JUMPS.format(first=steps[0], last=steps[1], least=pairing.jump, factor=FACTOR, digits=DIGITS)
        if records := connection.execute(f"{query} {_FIRST}").fetchall():
            return first_of(_located(rows, _causes(connection, pairing.jump, records, last)))
    return []


def _causes(
    connection: Connection, least: float, records: Sequence[tuple[Any, ...]], last: int
) -> Sequence[tuple[Any, ...]]:
    """Return the jumps of the modules in which those of the records may begin, in every step that shows them.

    A formula that differs does so in every step, but the norms of a step may agree by chance: what a wrong forward
    does to the backward of another module can show before it. So forwards of the steps behind come first, and half as
    much shows the earliest step of a module that is known to part the runs.
    """
    step = records[0][2]
    until = min(last, step + BEHIND)
    behind = _JUMPS.format(first=step, last=until, least=least, factor=FACTOR, digits=DIGITS)
    rows = connection.execute(f"{behind} WHERE signal = '{FORWARD}'").fetchall() or records
    modules = sorted({(row[0], row[6]) for row in rows})[:MOST]
    marks = ", ".join("(?, ?)" for _ in modules)
    every = _JUMPS.format(first=max(0, step - BEHIND), last=until, least=least / 2, factor=FACTOR, digits=DIGITS)
    query = f"{every} WHERE (signal, module) IN ({marks})"
    jumps_of_modules: list[tuple[Any, ...]] = connection.execute(query, [*chain.from_iterable(modules)]).fetchall()
    return jumps_of_modules


def _spans(connection: Connection, least: float, last: int) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of as many steps with a large difference as are read at a time."""
    first = before = size = -1
    for step, number in connection.execute(_STEPS, {"least": least, "last": last}).fetchall():
        if size > 0 and size + number > AT_ONCE:
            yield first, before
            size = -1
        first, size = (step, number) if size < 0 else (first, size + number)
        before = step
    if size > 0:
        yield first, before


def _located(rows: PieceRows, records: Iterable[tuple[Any, ...]]) -> Iterator[Jump]:
    """Yield jumps with their positions in the order of execution."""
    places: dict[tuple[str, int, int], dict[tuple[int, str, int, int], int]] = {}
    for signal, rank, step, micro, call, stage, module, before, after, own_name in records:
        of_step = signal, step, rank
        if of_step not in places:
            places[of_step] = positions(rows.a, signal, step, rank)
        at = places[of_step].get((stage, own_name, micro, call), len(places[of_step]))
        yield Jump(module, signal, step, micro, rank, call, before, after, at)


def first_of(candidates: Iterable[Jump]) -> list[Jump]:
    """Return the first jumps of several pieces, in the order of cause and effect."""
    ordered = sorted(candidates, key=lambda jump: jump.order)
    return [jump for jump in ordered if jump.phase == ordered[0].phase][:MOST]


def _list_owners(connection: Connection) -> None:
    """Make the table of parameters with the modules that they are of, those around these included."""
    names = connection.execute("SELECT id, own FROM flow_names WHERE signal = ?", [PARAMETERS]).fetchall()
    pairs = [(number, module) for number, name in names for module in _modules_of(name)]
    fill(connection, "owners", {"id": "INTEGER", "module": "VARCHAR"}, pairs)


def _modules_of(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:n]) for n in range(len(parts))]


_FLOWS = """
CREATE OR REPLACE TEMP TABLE flow_names (id INTEGER, signal VARCHAR, own VARCHAR);
CREATE OR REPLACE TEMP TABLE flows (id INTEGER, rank INTEGER, step BIGINT, micro_step INTEGER, call INTEGER,
    stage INTEGER, is_scalar BOOLEAN, flow FLOAT)
"""
_PAIRED = """
CREATE OR REPLACE TEMP TABLE paired AS
SELECT rank, step, micro_step, call, stage, coalesce(own, '') AS own, in_a, in_b, idle, excess, elements, flow
FROM ({pairs})
"""
_NAMES = """
INSERT INTO flow_names SELECT (SELECT count(*) FROM flow_names) + row_number() OVER (ORDER BY own), $signal, own
FROM (SELECT DISTINCT own FROM paired WHERE own NOT IN (SELECT own FROM flow_names WHERE signal = $signal))
"""
_ADD = """
INSERT INTO flows SELECT n.id, rank, step, micro_step, call, stage, elements <= 1, flow
FROM paired AS p JOIN flow_names AS n ON n.own = p.own AND n.signal = $signal WHERE in_a AND in_b
"""
_STEPS = """
SELECT step, count(*) FROM flows WHERE step <= $last GROUP BY step
HAVING count(*) FILTER (flow >= $least AND isfinite(flow)) > 0 ORDER BY step
"""
_PART = r"^(?:(.*)\.)?(input|output)(?:_\d+)?(?:\.call\d+)?$"
_JUMPS = f"""
WITH parts AS (
    SELECT id, signal, own, regexp_extract(own, '{_PART}', 1, 's') AS module,
        regexp_extract(own, '{_PART}', 2, 's') AS side
    FROM flow_names WHERE signal <> '{PARAMETERS}'),
chosen AS (SELECT * FROM flows WHERE step BETWEEN {{first}} AND {{last}}),
sides AS (
    SELECT signal, rank, step, micro_step, call, stage, module, side, max(flow) AS flow,
        arg_max(own, flow) AS own, bool_and(is_scalar) AS is_scalar
    FROM chosen JOIN parts USING (id) WHERE side <> '' GROUP BY ALL),
parameters AS (
    SELECT rank, step, stage, module, max(flow) AS flow FROM chosen JOIN owners USING (id) GROUP BY ALL),
inputs AS (SELECT * FROM sides WHERE signal = '{FORWARD}' AND side = 'input'),
outputs AS (SELECT * FROM sides WHERE signal = '{FORWARD}' AND side = 'output'),
output_gradients AS (SELECT * FROM sides WHERE signal = '{BACKWARD}' AND side = 'output'),
input_gradients AS (SELECT * FROM sides WHERE signal = '{BACKWARD}' AND side = 'input'),
found AS (
    SELECT o.signal, rank, step, micro_step, call, stage, module,
        greatest(i.flow, coalesce(p.flow, 0)) AS before, o.flow AS after, o.own, o.is_scalar
    FROM inputs AS i JOIN outputs AS o USING (rank, step, micro_step, call, stage, module)
        LEFT JOIN parameters AS p USING (rank, step, stage, module)
    UNION ALL
    SELECT o.signal, rank, step, micro_step, call, stage, module,
        greatest(g.flow, i.flow, f.flow, coalesce(p.flow, 0)) AS before, o.flow AS after, o.own, o.is_scalar
    FROM output_gradients AS g JOIN input_gradients AS o USING (rank, step, micro_step, call, stage, module)
        JOIN inputs AS i USING (rank, step, micro_step, call, stage, module)
        JOIN outputs AS f USING (rank, step, micro_step, call, stage, module)
        LEFT JOIN parameters AS p USING (rank, step, stage, module)),
jumps AS (
    SELECT * FROM found
    WHERE NOT is_scalar AND isfinite(before) AND isfinite(after)
        AND after >= {{least}} AND after >= {{factor}} * greatest(before, {{digits}}))
SELECT signal, rank, step, micro_step, call, stage, module, before, after, own FROM jumps
"""  # noqa: S608 - our own words
_FIRST = "WHERE (step, micro_step, signal) = (SELECT min((step, micro_step, signal)) FROM jumps)"
