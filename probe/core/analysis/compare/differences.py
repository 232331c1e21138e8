"""Differences of every pair of rows, by step and by name, and the tolerances for the numbers of two healthy runs.

A difference is relative to a size: that of a norm to the larger of the two norms; that of a mean or standard deviation
to the root mean square of the elements or, if that is larger, to the largest magnitude; that of a minimum or maximum to
the largest magnitude; that of a fraction of zeros to 1; any other to the larger value. Rows of pure rounding noise,
such as the gradient of a bias that a softmax cancels, are small but differ as much as they are large: so every row
counts as at least ``FLOOR`` times the largest root mean square of its signal, rank and step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from probe.core.analysis.compare import jumps
from probe.core.analysis.compare.census import Census
from probe.core.analysis.compare.compared_piece import ComparedPiece, PieceResult, opened_piece
from probe.core.analysis.compare.jumps import Jump
from probe.core.analysis.compare.pairing import KEY, RowPairing
from probe.core.analysis.compare.piece_rows import PieceRows
from probe.core.storage.duckdb_reader import connect, fill
from probe.core.storage.sql import quoted

RELATIVE: dict[str, float] = {"float64": 1e-4, "float32": 1e-3, "float16": 0.1, "bfloat16": 0.25, "float8": 0.5}
"""Relative difference up to which two runs are the same, by the coarsest dtype that either of them computes in.

Some ten times what healthy pairs of a small GPT showed over 40 steps (docs/guides/compare.md has the figures); twice
with bfloat16, in whose rounding real differences drown anyway. That of float8 is a guess.
"""
FLOOR = 1e-3
"""Fraction of the largest root mean square of a signal at a step: rows below it are measured as if they had it."""
EXACT = frozenset({"nans", "infs", "global_nans", "global_infs", "count", "bytes", "merged", "complete"})
"""Counts, which must be equal."""
LEFT_OUT = frozenset({"seconds"})
"""Columns that differ between equal runs."""
ZEROS = 0.5
"""Difference of fractions of zeros that is allowed, since noise in one run may be below eps in another; at least that
of two elements."""


def coarsest(dtypes: Iterable[str]) -> str:
    """Dtype in ``dtypes`` with the largest rounding error, as :data:`RELATIVE` spells it; float32 if none is known.

    Args:
        dtypes: as frameworks spell them, such as ``torch.bfloat16`` and ``BFloat16``.
    """
    plain = {dtype.rpartition(".")[2].lower() for dtype in dtypes}
    names = [name for name in RELATIVE if any(dtype.startswith(name) for dtype in plain)]
    return max(names, key=lambda name: RELATIVE[name], default="float32")


def difference(op: str, a: float | None, b: float | None, excess: float, relative: float) -> float:
    """Difference to show: relative, from the ``excess`` over the tolerance ``relative``; absolute for counts and
    fractions of zeros."""
    if a is None or b is None:
        return 0.0
    return abs(a - b) if op == "zeros" or op in EXACT else excess * relative


class Measure:
    """SQL for the differences of the numbers ``ops`` of rows ``a`` and ``b``, in multiples of the tolerance.

    Args:
        ops: ops to compare.
        have: ops that both sides have, by which others are measured.
        relative: the relative tolerance.
        digits: unit of the last decimal place, if values were rounded to a fixed number of places; else 0.
    """

    def __init__(self, ops: Sequence[str], have: Sequence[str], relative: float, digits: float) -> None:
        self.ops = tuple(op for op in ops if op not in LEFT_OUT)
        self.relative = relative
        self._have = frozenset(have)
        self._digits = digits

    def excess(self, op: str) -> str:
        """SQL of the difference in multiples of the tolerance; infinite if just one is NaN or infinite, and for
        counts."""
        a, b = self._side("a", op), self._side("b", op)
        # the difference of two large numbers may be too large for a number
        most = 2 / self.relative if self.relative and op != "zeros" else 1e300
        apart = "'inf'::DOUBLE" if op in EXACT else f"least(abs({a} - {b}) / {self._allowed(op)}, {most!r})"
        return (
            f"CASE WHEN {a} IS NULL OR {b} IS NULL OR {a} = {b} THEN 0 "
            f"WHEN NOT isfinite({a}) OR NOT isfinite({b}) THEN 'inf'::DOUBLE "
            f"ELSE {apart} END"
        )

    def _allowed(self, op: str) -> str:
        if op == "zeros":
            return f"greatest({ZEROS}, 2 / greatest(a.elements, 1))"
        return f"greatest({self.relative} * {self._size(op)}, {self._digits})"

    def _size(self, op: str) -> str:
        """SQL of the size to which a difference of ``op`` is relative: never 0, since the two values are not equal."""
        sizes = [self._finite(op, "{0}")]
        if op == "norm":
            sizes.append(f"coalesce({FLOOR} * s.rms * sqrt(a.elements), 0)")
        if op in ("mean", "std") and "norm" in self._have:
            sizes.append(self._finite("norm", "{0} / sqrt(greatest(a.elements, 1))"))
        if op in ("mean", "std", "min", "max"):
            sizes += [self._finite(extreme, "{0}") for extreme in ("min", "max") if extreme in self._have]
            sizes.append(f"coalesce({FLOOR} * s.rms, 0)")
        if op.startswith("global_"):
            sizes += [self._finite(e, "{0}") for e in ("global_min", "global_max") if e in self._have and e != op]
        return f"greatest({', '.join(sizes)})"

    def _finite(self, op: str, of: str) -> str:
        """SQL of the larger magnitude of the two sides; 0 if it is not finite."""
        larger = f"greatest(abs({self._side('a', op)}), abs({self._side('b', op)}))"
        return f"CASE WHEN isfinite({larger}) THEN {of.format(larger)} ELSE 0 END"

    def _side(self, side: str, op: str) -> str:
        return f"{side}.{quoted(op)}"


COLUMNS = 200
"""Most ranges of steps for which differences are kept, for each name."""
MOST_WAITING = 1_000_000
"""Rows of pieces that are kept before they are merged."""
MEMORY = "128MB"
"""Memory for the merged differences; beyond it files are used."""


class PieceDifferences:
    """Differences of the pairs of rows of a piece.

    Args:
        duplicated: signals with duplicate rows, of which the last of each counts.
    """

    def __init__(self, rows: PieceRows, duplicated: Collection[str] = ()) -> None:
        self.rows, self.pairing, self.connection = rows, rows.pairing, rows.connection
        self._duplicated = duplicated

    def measure(self, signal: str) -> Measure:
        pairing = self.pairing
        return Measure(pairing.chosen[signal], pairing.ops[signal], pairing.relative, pairing.decimals)

    def dtypes_differ(self, signal: str) -> str:
        """SQL condition that the dtypes of a pair of rows differ: of floating point, whatever the spelling."""
        if signal not in self.pairing.dtypes:
            return "false"
        a, b = (f"lower(regexp_extract(coalesce({side}.dtype, ''), '[^.]*$'))" for side in "ab")
        return f"({a} <> {b} AND {a} SIMILAR TO 'b?float.*' AND {b} SIMILAR TO 'b?float.*')"

    def flow(self, signal: str) -> str:
        """SQL of the relative difference of a pair of rows for :mod:`probe.core.analysis.compare.jumps`."""
        measure = self.measure(signal)
        return jumps.flow([(op, measure.excess(op)) for op in measure.ops], self.pairing.relative)

    def pairs(self, signal: str, first: int, last: int, *more: str) -> str:
        """Query for the paired rows of A and B in a range of A's steps, with their ``excess`` and the columns ``more``
        of both. It reads tables that are made here, and holds until the next call."""
        a, b = self.rows.selected(signal, first, last)
        self.connection.execute(f"CREATE OR REPLACE TEMP TABLE rows_a AS {a}")
        self.connection.execute(_SCALES)
        a = "FROM rows_a"
        if signal in self._duplicated:
            self.connection.execute(f"CREATE OR REPLACE TEMP TABLE rows_b AS {b}")
            a, b = (
                f"SELECT DISTINCT ON ({', '.join(KEY)}) * FROM rows_{side} ORDER BY {', '.join(KEY)}, rowid DESC"  # noqa: S608
                for side in "ab"
            )
        measure = self.measure(signal)
        excesses = [measure.excess(op) for op in measure.ops]
        sizes = [f"regexp_extract_all({side}.shape, '[0-9]+')" for side in "ab"]  # (3, 2) is [3, 2]
        differ = f"a.shape <> b.shape AND {sizes[0]} <> {sizes[1]}"
        apart = f"CASE WHEN ({differ}) OR {self.dtypes_differ(signal)} THEN 'inf'::DOUBLE ELSE 0 END"
        numbers = f"greatest(0, {', '.join(excesses)})" if excesses else "0"
        if self.pairing.noise:
            most = jumps.DIGITS / self.pairing.relative
            numbers = f"CASE WHEN a.noise AND isfinite({numbers}) THEN least({numbers}, {most}) ELSE {numbers} END"
        keys = ", ".join(f"coalesce(a.{key}, b.{key}) AS {key}" for key in KEY)
        on = " AND ".join(f"a.{key} = b.{key}" for key in KEY)
        columns = "".join(f", {column}" for column in more)
        return (
            f"SELECT {keys}, coalesce(a.own, b.own) AS own, a.name IS NOT NULL AS in_a, b.name IS NOT NULL AS in_b, "  # noqa: S608
            "coalesce(a.idle, b.idle) AS idle, "
            f"CASE WHEN in_a AND in_b THEN greatest({apart}, {numbers}) END AS excess{columns} "
            f"FROM ({a}) AS a FULL JOIN ({b}) AS b ON {on} "
            "LEFT JOIN scales AS s ON s.rank = a.rank AND s.step = a.step"
        )


class MeasuredSignal(NamedTuple):
    """Differences of the rows of a signal in a piece, as columns."""

    by_step: dict[str, Any]
    """Arrays by column of the table ``by_step``, except the signal; -1 where there is no excess."""
    by_name: dict[str, Any]


class MeasuredPiece(NamedTuple):
    """Differences of the rows of a piece."""

    signals: dict[str, MeasuredSignal]
    jumps: list[Jump]


def measure(
    piece: ComparedPiece, pairing: RowPairing, bins: Bins, signals: Sequence[str], duplicated: bool
) -> tuple[MeasuredPiece, PieceResult]:
    """Measure every pair of rows of some signals in a piece.

    Args:
        duplicated: true if rows of the signals come twice, so that the later of each is taken.
    """
    done: list[PieceResult] = []
    with opened_piece(piece, done) as opened:
        rows = PieceRows(opened, pairing)
        differences = PieceDifferences(rows, signals if duplicated else ())
        jumps.start(differences.connection)
        by_signal = {signal: _measured(differences, signal, bins) for signal in signals}
        jumped = [] if duplicated else jumps.jumps(rows)
    return MeasuredPiece(by_signal, jumped), done[0]


def _measured(differences: PieceDifferences, signal: str, bins: Bins) -> MeasuredSignal:
    connection = differences.connection
    connection.execute(_MEASURED)
    for first, last in differences.rows.windows(signal):
        flows = signal in jumps.FLOWS
        more = (f"{differences.flow(signal)} AS flow", "a.elements AS elements") if flows else ()
        pairs = differences.pairs(signal, first, last, *more)
        if flows:
            pairs = jumps.add(connection, signal, pairs)
        connection.execute(_MEASURE.format(pairs=pairs, first=bins.first, width=bins.width))
    return MeasuredSignal(*(connection.execute(query).fetchnumpy() for query in (_BY_STEP, _BY_NAME)))


class Bins(NamedTuple):
    """Ranges of steps of equal width."""

    first: int
    width: int


class DifferenceTables:
    """Results of comparing: the tables ``by_step`` (signal, step and micro step) and ``by_name`` (signal, name as A has
    it, and ``bin``, a range of steps), merged from those of pieces.

    Both have the number of ``rows`` compared, of those ``beyond`` the tolerance and of rows in one run alone, and the
    largest difference, ``excess``, in multiples of the tolerance.
    """

    def __init__(self, pairing: RowPairing) -> None:
        self.pairing, self.relative = pairing, pairing.relative
        self.connection = connect(MEMORY)
        self.duplicated: list[str] = []
        """Signals with duplicate rows."""
        self.jumps: list[Jump] = []
        """First jumps of each piece."""
        first, last = pairing.steps[0], pairing.steps[-1]
        self.bins = Bins(first, (last - first) // COLUMNS + 1)
        self._waiting = dict.fromkeys(_KEYS, 0)
        self.connection.execute(_TABLES)
        fill(self.connection, "steps", {"step": "BIGINT"}, ((step,) for step in pairing.steps))

    def __enter__(self) -> DifferenceTables:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def add(self, measured: MeasuredPiece) -> None:
        """Add the differences of a piece."""
        self.jumps += measured.jumps
        for signal, tables in measured.signals.items():
            for table, columns in (("by_step", tables.by_step), ("by_name", tables.by_name)):
                self.connection.register("piece", columns)
                self.connection.execute(
                    f"INSERT INTO {table} SELECT ?, {', '.join(columns)} FROM piece",  # noqa: S608 - our own words
                    [signal],
                )
                self.connection.unregister("piece")
                self._waiting[table] += len(columns["rows"])
                if self._waiting[table] > MOST_WAITING:
                    self._merge(table)

    def merge(self) -> None:
        """Make one row of all rows of equal keys."""
        for table in _KEYS:
            self._merge(table)

    def _merge(self, table: str) -> None:
        self.connection.execute(_MERGED.format(table=table, keys=_KEYS[table]))
        self._waiting[table] = 0

    def find_duplicated(self, census: Census) -> list[str]:
        """Return the signals of which a step has more pairs than one of the runs has rows; they are removed, to be
        measured again."""
        query = "SELECT signal, step, sum(rows) FROM by_step GROUP BY ALL"
        more = set()
        for signal, step, rows in self.connection.execute(query).fetchall():
            keys = ("a", signal), ("b", self.pairing.signals[signal])
            if any(rows > census.rows[key].steps.get(step, rows) for key in keys):
                more.add(signal)
        self.duplicated = [signal for signal in self.pairing.signals if signal in more]
        if jumps.FLOWS.intersection(self.duplicated):  # of rows that come twice, each was paired with both
            self.jumps = []
        for signal in self.duplicated:
            for table in _KEYS:
                self.connection.execute(f"DELETE FROM {table} WHERE signal = ?", [signal])  # noqa: S608 - our own words
        return self.duplicated


def selected_numbers(ops: tuple[str, ...], measure: Measure) -> tuple[str, ...]:
    """Columns of both values and the excess of each op, in the order ``a, b, excess``."""
    return tuple(
        cell
        for n, op in enumerate(ops)
        for cell in (f"a.{quoted(op)} AS a{n}", f"b.{quoted(op)} AS b{n}", f"{measure.excess(op)} AS e{n}")
    )


_TABLES = """
CREATE TABLE by_step (signal VARCHAR, step BIGINT, micro_step INTEGER,
    rows BIGINT, beyond BIGINT, only_a BIGINT, only_b BIGINT, excess DOUBLE);
CREATE TABLE by_name (signal VARCHAR, name VARCHAR, bin BIGINT,
    rows BIGINT, beyond BIGINT, only_a BIGINT, only_b BIGINT, excess DOUBLE);
"""
_KEYS = {"by_step": "signal, step, micro_step", "by_name": "signal, name, bin"}
_COUNTS = (
    "sum(rows)::BIGINT AS rows, sum(beyond)::BIGINT AS beyond, sum(only_a)::BIGINT AS only_a, "
    "sum(only_b)::BIGINT AS only_b"
)
_MERGED = (
    "CREATE OR REPLACE TABLE {table} AS "  # noqa: S608 - our own words
    f"SELECT {{keys}}, {_COUNTS}, nullif(max(excess), -1) AS excess FROM {{table}} GROUP BY ALL"
)
_SCALES = """
CREATE OR REPLACE TEMP TABLE scales AS
SELECT rank, step, max(rms) FILTER (isfinite(rms)) AS rms FROM rows_a GROUP BY rank, step
"""
"""Largest root mean square in A for each rank and step."""
_MEASURED = """
CREATE OR REPLACE TEMP TABLE measured (step BIGINT, micro_step INTEGER, name VARCHAR, bin BIGINT, by_step BOOLEAN,
    rows BIGINT, beyond BIGINT, only_a BIGINT, only_b BIGINT, excess DOUBLE)
"""
_MEASURE = """
INSERT INTO measured
SELECT step, micro_step, own, bin, grouping(own) = 1, count(*) FILTER (in_a AND in_b), count(*) FILTER (excess > 1),
    count(*) FILTER (in_a AND NOT in_b AND NOT idle), count(*) FILTER (in_b AND NOT in_a AND NOT idle), max(excess)
FROM (SELECT *, (step - {first}) // {width} AS bin FROM ({pairs}))
GROUP BY GROUPING SETS ((step, micro_step), (own, bin))
"""
_PIECE = f"SELECT {{keys}}, {_COUNTS}, coalesce(max(excess), -1) AS excess FROM measured WHERE {{which}} GROUP BY ALL"  # noqa: S608
_BY_STEP = _PIECE.format(keys="step, micro_step", which="by_step")
_BY_NAME = _PIECE.format(keys="name, bin", which="NOT by_step")
