"""Differences of every pair of rows, by step and by name, and the tolerances for the numbers of two healthy runs.

A difference is relative to a size: that of a norm to the larger of the two norms; that of a mean or standard deviation
to the root mean square of the elements or, if that is larger, to the largest magnitude; that of a minimum or maximum to
the largest magnitude; that of a fraction of zeros to 1; any other to the larger value. Rows of pure rounding noise,
such as the gradient of a bias that a softmax cancels, are small but differ as much as they are large: so every row
counts as at least ``FLOOR`` times the largest root mean square of its signal, rank and step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe.core.analysis.compare.pairing import KEY, Sides
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
    found = [known for known in RELATIVE if any(dtype.startswith(known) for dtype in plain)]
    return max(found, key=lambda known: RELATIVE[known], default="float32")


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
        apart = "'inf'::DOUBLE" if op in EXACT else f"least(abs({a} - {b}) / {self._allowed(op)}, 1e300)"
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


class DifferenceTables:
    """Results of comparing: the tables ``by_step`` (signal, step and micro step) and ``by_name`` (signal, name as A has
    it, and ``bin``, a range of steps).

    Both have the number of ``rows`` compared, of those ``beyond`` the tolerance and of rows in one run alone, and the
    largest difference, ``excess``, in multiples of the tolerance.
    """

    def __init__(self, sides: Sides, relative: float) -> None:
        self.sides, self.relative = sides, relative
        self.connection = sides.connection
        self.duplicated: list[str] = []
        """Signals with duplicate rows."""
        first, last = self.connection.execute("SELECT min(step), max(step) FROM steps").fetchall()[0]
        self.first_step = int(first)
        self.bin_width = (int(last) - int(first)) // COLUMNS + 1
        """Number of steps in a range."""
        self.connection.execute(_TABLES)
        for signal in sides.signals:
            self._compare(signal)

    def pairs(self, signal: str, first: int, last: int, *more: str) -> str:
        """Query for the paired rows of A and B, with their ``excess`` and the columns ``more`` of both.

        The table ``scales`` must have been made for the signal.
        """
        a, b = self.sides.selected(signal, first, last)
        if signal in self.duplicated:
            a, b = (f"SELECT DISTINCT ON ({', '.join(KEY)}) * FROM ({side})" for side in (a, b))  # noqa: S608
        measure = self.measure(signal)
        excesses = [measure.excess(op) for op in measure.ops]
        sizes = [f"regexp_extract_all({side}.shape, '[0-9]+')" for side in "ab"]  # (3, 2) is [3, 2]
        differ = f"a.shape <> b.shape AND {sizes[0]} <> {sizes[1]}"
        shapes = f"CASE WHEN {differ} THEN 'inf'::DOUBLE ELSE 0 END"
        keys = ", ".join(f"coalesce(a.{key}, b.{key}) AS {key}" for key in KEY)
        on = " AND ".join(f"a.{key} = b.{key}" for key in KEY)
        chosen = "".join(f", {each}" for each in more)
        return (
            f"SELECT {keys}, coalesce(a.own, b.own) AS own, a.name IS NOT NULL AS in_a, b.name IS NOT NULL AS in_b, "  # noqa: S608
            "coalesce(a.idle, b.idle) AS idle, "
            f"CASE WHEN in_a AND in_b THEN greatest({', '.join([shapes, *excesses])}) END AS excess{chosen} "
            f"FROM ({a}) AS a FULL JOIN ({b}) AS b ON {on} "
            "LEFT JOIN scales AS s ON s.rank = a.rank AND s.step = a.step"
        )

    def measure(self, signal: str) -> Measure:
        decimals = max(self.sides.a.decimals, self.sides.b.decimals)
        return Measure(self.sides.chosen(signal), self.sides.ops(signal), self.relative, decimals)

    def scale(self, signal: str) -> None:
        """Create the table ``scales``: the largest root mean square in A for each rank and step."""
        self.connection.execute(
            "CREATE OR REPLACE TEMP TABLE scales AS SELECT rank, step, rms FROM seen "
            "WHERE side = 'a' AND signal = ? AND step IS NOT NULL",
            [signal],
        )

    def _compare(self, signal: str) -> None:
        self.scale(signal)
        for first, last in self.sides.windows(signal):
            self._measure(signal, first, last)
        ((paired_more,),) = self.connection.execute(_MORE_THAN_SEEN, {"signal": signal}).fetchall()
        if paired_more and signal not in self.duplicated:
            self.duplicated.append(signal)
            for table in ("by_step", "by_name"):
                self.connection.execute(f"DELETE FROM {table} WHERE signal = ?", [signal])  # noqa: S608 - our own words
            self._compare(signal)

    def _measure(self, signal: str, first: int, last: int) -> None:
        query = _MEASURE.format(pairs=self.pairs(signal, first, last), first=self.first_step, width=self.bin_width)
        self.connection.execute("CREATE OR REPLACE TEMP TABLE measured AS " + query)
        for table, columns, where in (
            ("by_step", "step, micro_step", "step IS NOT NULL"),
            ("by_name", "own, bin", "step IS NULL"),
        ):
            self.connection.execute(
                f"INSERT INTO {table} SELECT ?, {columns}, rows, beyond, only_a, only_b, excess "  # noqa: S608
                f"FROM measured WHERE {where}",
                [signal],
            )


def selected_numbers(ops: tuple[str, ...], measure: Measure) -> tuple[str, ...]:
    """Columns of both values and the excess of each op, in the order ``a, b, excess``."""
    return tuple(
        cell
        for n, op in enumerate(ops)
        for cell in (f"a.{quoted(op)} AS a{n}", f"b.{quoted(op)} AS b{n}", f"{measure.excess(op)} AS e{n}")
    )


_TABLES = """
CREATE TEMP TABLE by_step (signal VARCHAR, step BIGINT, micro_step INTEGER,
    rows BIGINT, beyond BIGINT, only_a BIGINT, only_b BIGINT, excess DOUBLE);
CREATE TEMP TABLE by_name (signal VARCHAR, name VARCHAR, bin BIGINT,
    rows BIGINT, beyond BIGINT, only_a BIGINT, only_b BIGINT, excess DOUBLE);
"""
_MEASURE = """
SELECT step, micro_step, own, bin, count(*) FILTER (in_a AND in_b) AS rows, count(*) FILTER (excess > 1) AS beyond,
    count(*) FILTER (in_a AND NOT in_b AND NOT idle) AS only_a,
    count(*) FILTER (in_b AND NOT in_a AND NOT idle) AS only_b, max(excess) AS excess
FROM (SELECT *, (step - {first}) // {width} AS bin FROM ({pairs}))
GROUP BY GROUPING SETS ((step, micro_step), (own, bin))
"""
_MORE_THAN_SEEN = """
WITH paired AS (SELECT step, sum(rows) AS rows FROM by_step WHERE signal = $signal GROUP BY step),
have AS (SELECT side, step, sum(rows) AS rows FROM seen WHERE signal = $signal AND step IS NOT NULL GROUP BY side, step)
SELECT count(*) FROM paired JOIN have USING (step) WHERE paired.rows > have.rows
"""
